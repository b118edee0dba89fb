"""torchao's optimizers on two ranks: through a checkpoint of both, to both and to one process."""

import pytest
from cases import resumed
from trainings import STRATEGIES, assert_same, composed

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UserError

MLP = ("model=mlp_small", "model.hidden_size=128", "data=digits", "data.batch_size=8")
"""Two weights of 8,192 and 16,384 numbers, whose states are in 8 bits, and four small parameters."""


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adamw_fp8"])
def test_ddp_goes_on_to_the_last_bit(pair, optimizer, tmp_path):
    pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    training = (*MLP, f"optimizer={optimizer}", "trainer.checkpoint_every=3")
    first, second = pair.run("whole_and_in_two", config=composed(*training, *STRATEGIES["ddp"]), place=tmp_path)
    assert first["notes"] == []
    assert_same(first["restored"], first["saved"])
    assert_same(first["resumed"], first["ended"])
    alone, (note,) = resumed(None, composed(*training, "data.batch_size=16"), tmp_path / "checkpoints/last")
    assert note.startswith("the checkpoint is of 2 ranks, this run has one process")
    for key in ("model", "optimizers"):
        assert_same(first["ended"][key], second["ended"][key])
        assert_same(alone[key], first["saved"][key])


def test_fsdp2_is_refused():
    sentence = r"^optimizer\._target_=torchao\.optim\.AdamW8bit with parallel=fsdp2: shards .*; use parallel=ddp$"
    with pytest.raises(UserError, match=sentence):
        compose_one([*MLP, *STRATEGIES["policy"], "optimizer=adamw_8bit"])
    with pytest.raises(
        UserError, match=r"^optimizer\.each\.critic\._target_=torchao\.optim\.AdamWFp8 with parallel=fsdp2: "
    ):
        compose_one([*MLP, *STRATEGIES["policy"], "+optimizer.each.critic._target_=torchao.optim.AdamWFp8"])
