"""What cannot work on several ranks is refused with a sentence, before anything starts."""

import pytest
import torch
from rank_models import Frozen, Net, Normalized, Tied
from torch import nn
from trainings import GPT, MLP, OWN, STRATEGIES, composed

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.parallel.model_support import blocks_of, check_fit
from ampsweep.sweep.model_check import check_model
from ampsweep.sweep.preflight_checks import check_ranks
from ampsweep.training.components.built import build_data


def fit(model, *overrides):
    config = composed(*MLP, *overrides)
    check_fit(model, config.parallel, config.precision, "cpu", in_parts=False)


def check(*overrides):
    """Check a workload as a sweep does before it starts."""
    config = composed(*overrides)
    check_ranks(config, check_model(config, build_data(config, torch.device("cpu"))), None)


SHARDED = (*STRATEGIES["policy"], "precision=amp_bf16")


@pytest.mark.parametrize(
    ("model", "overrides", "sentence"),
    [
        (Tied, SHARDED, r"the parameter blocks\.0\.weight is also blocks\.2\.weight, of another block"),
        (lambda: nn.ParameterDict({"gain": torch.tensor(1.0)}), SHARDED, "gain is a scalar"),
        (Normalized, SHARDED, "use parallel.mixed_precision=autocast"),
        (Net, (*SHARDED, "parallel.blocks=['layer*']"), r"no module of the model is called layer\*"),
        (Net, (*STRATEGIES["ddp"], "parallel.sync_batchnorm=true"), "torch has it on CUDA only"),
    ],
)
def test_a_model_that_cannot_be_distributed_is_refused(model, overrides, sentence):
    with pytest.raises(ValueError, match=f"parallel.*{sentence}"):
        fit(model(), *overrides)


def test_plain_models_can_be_sharded():
    for model in (Net(), Frozen()):
        fit(model, *SHARDED)


def test_blocks_are_those_of_the_patterns_or_of_the_model():
    model = Tied()
    assert blocks_of(model, ()) == [model.blocks[2], model.blocks[1], model.blocks[0]]
    assert blocks_of(model, ["head"]) == [model.head]
    assert blocks_of(Net(), ()) == []
    wrapped = nn.Sequential(Net())
    wrapped[0]._no_split_modules = ["Linear"]
    assert len(blocks_of(wrapped, ())) == 2


def test_a_workload_that_cannot_be_distributed_is_refused():
    of_two = ("parallel.num_processes=2", "precision=fp32")
    with pytest.raises(UnsupportedError, match=r"parallel\.find_unused_parameters=true"):  # ends no sweep
        check(*OWN, "model._target_=rank_models.Unused", "parallel=ddp", *of_two)
    in_parts = ("model._target_=rank_models.Net", "task=custom", "task._target_=rank_models.InParts")
    with pytest.raises(UserError, match="calls parts of the model"):
        check(*OWN, *in_parts, "parallel=fsdp2", *of_two)
    with pytest.raises(UserError, match=r"parallel=ddp on a CPU needs parallel\.num_processes"):
        check(*GPT, "parallel=ddp")


def test_a_penalty_is_refused_where_parameters_are_freed():
    with pytest.raises(UserError, match="cannot be differentiated; use parallel=ddp"):
        compose_one((*MLP, "task.gradient_penalty=0.1", *STRATEGIES["policy"]))
