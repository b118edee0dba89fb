"""What cannot work on several ranks is refused with a sentence, before anything starts."""

import pytest
import torch
from rank_models import Frozen, Net, Normalized, Scalar, Tied
from torch import nn
from trainings import GPT, MLP, STRATEGIES, composed

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.parallel.model_support import blocks_of, check_fit
from ampsweep.sweep.model_check import check_model
from ampsweep.sweep.preflight_checks import check_ranks
from ampsweep.training.components.built import build_data

OWN = ("model=custom", "data=digits", "optimizer=sgd")


def refused(model, *overrides, in_parts=False):
    config = composed(*MLP, *overrides)
    with pytest.raises(ValueError, match="parallel") as error:
        check_fit(model, config.parallel, config.precision, "cpu", in_parts=in_parts)
    return str(error.value)


def test_a_model_that_cannot_be_sharded_is_refused():
    sharded = (*STRATEGIES["policy"], "precision=amp_bf16")
    assert "the parameter blocks.0.weight is also blocks.2.weight, of another block" in refused(Tied(), *sharded)
    assert "gain is a scalar" in refused(Scalar(), *sharded)
    assert "use parallel.mixed_precision=autocast" in refused(Normalized(), *sharded)
    assert "no module of the model is called layer*" in refused(Net(), *sharded, "parallel.blocks=['layer*']")
    assert "SyncBatchNorm" not in refused(Net(), *STRATEGIES["ddp"], "parallel.sync_batchnorm=true")
    for model in (Net(), Frozen()):
        config = composed(*MLP, *sharded)
        check_fit(model, config.parallel, config.precision, "cpu", in_parts=False)


def test_blocks_are_those_of_the_patterns_or_of_the_model():
    model = Tied()
    assert blocks_of(model, ()) == [model.blocks[2], model.blocks[1], model.blocks[0]]
    assert blocks_of(model, ["head"]) == [model.head]
    assert blocks_of(Net(), ()) == []
    wrapped = nn.Sequential(Net())
    wrapped[0]._no_split_modules = ["Linear"]
    assert len(blocks_of(wrapped, ())) == 2


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("model._target_=rank_models.Unused", "parallel=ddp"), "parallel.find_unused_parameters=true"),
        (
            ("model._target_=rank_models.Net", "parallel=fsdp2", "task=custom", "task._target_=rank_models.InParts"),
            "calls parts of the model",
        ),
    ],
)
def test_a_workload_that_cannot_be_distributed_is_refused(overrides, sentence):
    config = composed(*OWN, *overrides, "parallel.num_processes=2", "precision=fp32")
    found = check_model(config, build_data(config, torch.device("cpu")))
    with pytest.raises(ValueError, match=sentence) as refused:
        check_ranks(config, found, None)
    ends_no_sweep = isinstance(refused.value, UnsupportedError)
    assert ends_no_sweep == (found.unused != [])


def test_a_number_of_processes_is_needed_on_a_cpu():
    config = composed(*GPT, "parallel=ddp")
    found = check_model(config, build_data(config, torch.device("cpu")))
    with pytest.raises(UserError, match=r"parallel=ddp on a CPU needs parallel.num_processes"):
        check_ranks(config, found, None)


def test_a_penalty_is_refused_where_parameters_are_freed():
    with pytest.raises(UserError, match="cannot be differentiated; use parallel=ddp"):
        compose_one((*MLP, "task.gradient_penalty=0.1", *STRATEGIES["policy"]))
