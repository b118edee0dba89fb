"""torchao's optimizers on two ranks: through a checkpoint of both, to both and to one process."""

import pytest
import torch
from torchao_trainings import facts
from trainings import STRATEGIES, assemble, composed

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UserError
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume

MLP = ("model=mlp_small", "model.hidden_size=128", "data=digits", "data.batch_size=8")
"""Two weights of 8,192 and 16,384 numbers, whose states are in 8 bits, and four small parameters."""


def is_same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.float(), other.float())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adamw_fp8"])
def test_ddp_goes_on_to_the_last_bit(pair, optimizer, tmp_path):
    pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    config = composed(*MLP, *STRATEGIES["ddp"], f"optimizer={optimizer}")
    first, second = pair.run("torchao_trainings.whole_and_in_two", config=config, place=tmp_path)
    assert is_same(first["unbroken"], second["unbroken"]), "the ranks train one model"
    assert first["notes"] == []
    assert is_same(first["restored"], first["saved"])
    assert is_same(first["resumed"], first["unbroken"])
    alone = assemble(composed(*MLP, "data.batch_size=16", f"optimizer={optimizer}"))
    (note,) = resume(alone.trainer, find_checkpoint(tmp_path / "checkpoints/last"))
    assert note.startswith("the checkpoint is of 2 ranks, this run has one process")
    assert is_same(facts(alone), first["saved"])


def test_fsdp2_is_refused():
    sentence = r"^optimizer\._target_=torchao\.optim\.AdamW8bit with parallel=fsdp2: shards are .*; use parallel=ddp$"
    with pytest.raises(UserError, match=sentence):
        compose_one([*MLP, *STRATEGIES["policy"], "optimizer=adamw_8bit"])
    with pytest.raises(
        UserError, match=r"^optimizer\.each\.critic\._target_=torchao\.optim\.AdamWFp8 with parallel=fsdp2: "
    ):
        compose_one([*MLP, *STRATEGIES["policy"], "+optimizer.each.critic._target_=torchao.optim.AdamWFp8"])
