"""torchao's optimizers on two ranks: through a checkpoint of both, to both and to one process."""

import pytest
import torch
from cases import torchao_facts
from trainings import STRATEGIES, assemble, composed

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UserError
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume

MLP = ("model=mlp_small", "model.hidden_size=128", "data=digits", "data.batch_size=8")
"""Two weights of 8,192 and 16,384 numbers, whose states are in 8 bits, and four small parameters."""


def is_same(some, other):
    if isinstance(some, torch.Tensor):
        return some.dtype == other.dtype and torch.equal(some.float(), other.float())
    if isinstance(some, dict):
        return some.keys() == other.keys() and all(is_same(some[key], other[key]) for key in some)
    if isinstance(some, list | tuple):
        return len(some) == len(other) and all(map(is_same, some, other))
    return some == other


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adamw_fp8"])
def test_ddp_goes_on_to_the_last_bit(pair, optimizer, tmp_path):
    pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    config = composed(*MLP, *STRATEGIES["ddp"], f"optimizer={optimizer}")
    first, second = pair.run("cases.torchao_whole_and_in_two", config=config, place=tmp_path)
    assert is_same(first["unbroken"], second["unbroken"]), "the ranks train one model"
    assert first["notes"] == []
    assert is_same(first["restored"], first["saved"])
    assert is_same(first["resumed"], first["unbroken"])
    alone = assemble(composed(*MLP, "data.batch_size=16", f"optimizer={optimizer}"))
    (note,) = resume(alone.trainer, find_checkpoint(tmp_path / "checkpoints/last"))
    assert note.startswith("the checkpoint is of 2 ranks, this run has one process")
    assert is_same(torchao_facts(alone), first["saved"])


def test_fsdp2_is_refused():
    sentence = r"^optimizer\._target_=torchao\.optim\.AdamW8bit with parallel=fsdp2: shards .*; use parallel=ddp$"
    with pytest.raises(UserError, match=sentence):
        compose_one([*MLP, *STRATEGIES["policy"], "optimizer=adamw_8bit"])
    with pytest.raises(
        UserError, match=r"^optimizer\.each\.critic\._target_=torchao\.optim\.AdamWFp8 with parallel=fsdp2: "
    ):
        compose_one([*MLP, *STRATEGIES["policy"], "+optimizer.each.critic._target_=torchao.optim.AdamWFp8"])
