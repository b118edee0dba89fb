"""A training saved in one precision goes on in another from the same weights, on the same batch."""

from itertools import permutations

import pytest
import torch
from assembled import GPT, MLP, assemble, resumed_from

from ampsweep.record import CHECKPOINTS, LAST
from ampsweep.training.checkpoint import load_checkpoint

MODES = ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")
SETTINGS = ("trainer.steps=7", "trainer.checkpoint_every=4", "scheduler=cosine", "optimizer.lr=1e-2")


@pytest.fixture
def saved_in(tmp_path):
    """A training of a mode, and the checkpoint that it wrote after its fourth step."""

    def train(mode, *overrides):
        directory = tmp_path / mode
        directory.mkdir()
        training = assemble(*overrides, *SETTINGS, f"precision={mode}", directory=directory)
        assert training.train().status == "completed"
        return training, directory / CHECKPOINTS / LAST

    return train


def resumed_in(mode, file, *overrides):
    return resumed_from(file, *overrides, *SETTINGS, f"precision={mode}")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_precision_goes_on_bitwise(mode, saved_in):
    whole, file = saved_in(mode, *GPT)
    training, notes = resumed_in(mode, file, *GPT)
    training.train()
    assert notes == []
    for key in ("train/loss", "val/loss"):
        assert training.column(key) == {step: value for step, value in whole.column(key).items() if step > 4}
    assert all(map(torch.equal, training.parameters(), whole.parameters()))


@pytest.mark.parametrize(("before", "after"), list(permutations(MODES, 2)))
def test_the_first_loss_is_that_of_the_converted_weights(before, after, saved_in):
    _, file = saved_in(before, *MLP)
    training, _ = resumed_in(after, file, *MLP)
    saved = load_checkpoint(file)
    parameters = dict(training.built.model.named_parameters())
    dtype = torch.bfloat16 if after == "pure_bf16" else torch.float32
    assert all(torch.equal(parameters[name], saved.model[name].to(dtype)) for name in parameters)
    precision, trainer = training.built.precision, training.trainer
    batch = trainer._prepare(training.built.data.train_batch(saved.next_batch))
    with torch.no_grad(), precision.flags(), precision.autocast():
        expected = float(training.built.task.loss(training.built.model, batch))
    training.train()
    assert training.column("train/loss")[5] == expected


def test_an_optimizers_state_takes_the_dtype_of_its_parameters(saved_in, tmp_path):
    _, file = saved_in("fp32", *MLP)
    low, notes = resumed_in("pure_bf16", file, *MLP)
    assert notes == [
        "the checkpoint's parameters in float32 became bfloat16: rounded",
        "the checkpoint's AdamW's state in float32 became bfloat16: rounded",
    ]
    (saved,) = load_checkpoint(file).optimizers.values()
    (optimizer,) = low.built.optimizers.values()
    kept = list(optimizer.state.values())
    assert len(kept) == len(saved["state"]["state"])
    for state, before in zip(kept, saved["state"]["state"].values(), strict=True):
        assert float(state["step"]) == 4
        assert state["step"].dtype == torch.float32, "a count that bfloat16 could not hold beyond 256"
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(state[name], before[name].bfloat16())
    file_low = low.keep(tmp_path)
    back, notes = resumed_in("fp32", file_low, *MLP)
    assert notes == [
        "the checkpoint's parameters in bfloat16 became float32: exact, with no more digits than were saved",
        "the checkpoint's AdamW's state in bfloat16 became float32: exact, with no more digits than were saved",
    ]
    (optimizer,) = back.built.optimizers.values()
    for state, before in zip(optimizer.state.values(), kept, strict=True):
        assert state["exp_avg_sq"].dtype == torch.float32
        assert torch.equal(state["exp_avg_sq"], before["exp_avg_sq"].float())


def test_a_scaler_that_starts_afresh_is_told_of(saved_in):
    _, bf16 = saved_in("amp_bf16", *MLP)
    _, notes = resumed_in("amp_fp16", bf16, *MLP)
    assert notes == ["the checkpoint has no GradScaler state; a fresh one starts at scale 65536"]
    _, fp16 = saved_in("amp_fp16", *MLP)
    _, notes = resumed_in("amp_bf16", fp16, *MLP)
    assert notes == ["the checkpoint's GradScaler state is ignored; this run has no scaler"]


def test_steps_skipped_after_the_checkpoint_are_counted(saved_in):
    _, file = saved_in("amp_bf16", *MLP)
    training, _ = resumed_in("amp_fp16", file, *MLP, "precision.init_scale=1e38")
    training.train()
    assert training.column("amp/skipped_steps")[7] == 3
    assert training.column("amp/applied_steps")[7] == 4, "those before the checkpoint"
