"""Dtypes of optimizer states in a sweep and in a single run, as a user sees them: arms, outcomes and one sentence."""

import pytest
from command_line import all_runs

pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")

MLP = ("model=mlp_small", "data=digits", "optimizer=adamw", "trainer.steps=4", "tracking=disabled", "device=cpu")


def test_8_bits_are_an_arm_and_a_small_model_an_outcome(train):
    ended = train("-m", *MLP, "model.hidden_size=16,128", "optimizer.state_dtype=null,int8")
    assert ended.code == 0
    found = {(run.record.arm, run.record.config["model"]["hidden_size"]): run.record for run in all_runs("outputs")}
    packed, plain = found["fp32+state_dtype=int8", 128], found["fp32", 128]
    assert packed.status == plain.status == found["fp32", 16].status == "completed"
    assert packed.pair_key == plain.pair_key
    assert packed.proof.contradictions == []
    assert (plain.dtypes.optimizer_state, packed.dtypes.optimizer_state) == ("float32", "int8")
    assert packed.memory.peak["optimizer_state"] < plain.memory.peak["optimizer_state"] / 3
    assert packed.prediction.peak_bytes == packed.memory.peak_bytes
    small = found["fp32+state_dtype=int8", 16]
    assert small.status == "unsupported"
    assert small.error.startswith("optimizer.state_dtype=int8 would change nothing: torchao keeps states in 8 bits of ")


def test_a_small_model_alone_is_wrong_input(train):
    ended = train(*MLP, "model.hidden_size=16", "optimizer.state_dtype=int8")
    assert (ended.code, ended.out) == (2, "")
    (sentence,) = ended.said
    assert sentence.endswith("a multiple of 256, and none of these 6 is one")
    assert all_runs("outputs") == []
