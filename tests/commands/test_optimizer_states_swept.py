"""Optimizers of torchao's in a sweep, as a user sees them: workloads beside each other, and a run that goes on."""

import pytest
from command_line import all_runs

pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")

MLP = ("model=mlp_small", "model.hidden_size=128", "data=digits", "trainer.steps=4", "tracking=disabled", "device=cpu")


def test_they_stand_beside_the_optimizer_that_keeps_float32(train):
    ended = train("-m", *MLP, "model.hidden_size=256", "optimizer=adamw,adamw_8bit")
    assert ended.code == 0
    found = {run.record.identity.optimizer: run.record for run in all_runs("outputs")}
    packed, plain = found["adamw_8bit"], found["adamw"]
    assert packed.status == plain.status == "completed"
    assert (plain.dtypes.optimizer_state, packed.dtypes.optimizer_state) == ("float32", "uint8")
    assert packed.memory.peak["optimizer_state"] < plain.memory.peak["optimizer_state"] / 3
    assert packed.prediction.peak_bytes == packed.memory.peak_bytes
    assert "Each optimizer beside the others" in ended.out


def test_a_run_goes_on_from_its_checkpoint(train):
    assert train(*MLP, "optimizer=adamw_fp8", "trainer.checkpoint_every=2").code == 0
    (first,) = all_runs("outputs")
    ended = train(*MLP, "optimizer=adamw_fp8", "trainer.steps=6", f"resume={first.directory}")
    assert ended.code == 0
    assert not [line for line in ended.said if "starts fresh" in line]
