"""A training saved in one precision goes on in another from the same weights, on the same batch."""

import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from assembled import GPT, MLP, NoStop, assemble, resumed_from

from ampsweep.record import AT_SEAM, CHECKPOINTS
from ampsweep.training.checkpoint import load_checkpoint

MODES = ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")
SEAM = ("trainer.steps=7", "seam.step=4", "trainer.log_every=3", "scheduler=cosine", "optimizer.lr=1e-2")


@pytest.fixture
def saved_in(tmp_path):
    """An uninterrupted training of a mode, and the checkpoint that it kept."""

    def train(mode, *overrides):
        directory = tmp_path / mode
        directory.mkdir()
        training = assemble(*overrides, *SEAM, f"precision={mode}", directory=directory)
        assert training.train().status == "completed"
        return training, directory / CHECKPOINTS / AT_SEAM

    return train


def resumed_in(mode, file, *overrides):
    return resumed_from(file, *overrides, *SEAM, f"precision={mode}")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_precision_goes_on_bitwise(mode, saved_in):
    whole, file = saved_in(mode, *GPT)
    training, notes = resumed_in(mode, file, *GPT)
    training.train()
    assert notes == []
    for key in ("train/loss", "val/loss"):
        assert training.column(key) == {step: value for step, value in whole.column(key).items() if step > 4}
    assert training.column("seam/val_loss") == {5: whole.column("val/loss")[4]}
    assert all(map(torch.equal, training.parameters(), whole.parameters()))


def test_an_uninterrupted_training_is_as_without_a_seam(saved_in):
    whole, _ = saved_in("amp_fp16", *GPT)
    plain = assemble(*GPT, *SEAM, "precision=amp_fp16", "seam.step=null")
    plain.train()
    assert all(map(torch.equal, plain.parameters(), whole.parameters()))
    assert list(plain.column("train/loss")) == [3, 6, 7]
    assert list(whole.column("train/loss")) == [3, 4, 5, 6, 7], "with the steps on both sides of the seam"
    assert (plain.saved, whole.saved) == ([], []), "no checkpoint but the one at the seam"


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


def test_steps_skipped_after_the_seam_are_counted(saved_in):
    _, file = saved_in("amp_bf16", *MLP)
    training, _ = resumed_in("amp_fp16", file, *MLP, "precision.init_scale=1e38")
    training.train()
    assert training.column("amp/skipped_steps")[7] == 3
    assert training.column("amp/applied_steps")[7] == 4, "those before the seam"


class DrawingData:
    """Data whose validation draws from every generator, as a user's may."""

    def __init__(self, data):
        self._data = data

    def __getattr__(self, name):
        return getattr(self._data, name)

    def train_batch(self, index):
        return self._data.train_batch(index)

    def val_batches(self):
        random.random(), np.random.rand(), torch.rand(1)
        return self._data.val_batches()


def test_the_evaluation_at_the_seam_takes_no_random_number(saved_in):
    _, file = saved_in("fp32", *GPT)
    losses = []
    for wrapped in (False, True):
        training, _ = resumed_in("amp_bf16", file, *GPT)
        if wrapped:
            training.trainer.data = DrawingData(training.trainer.data)
        training.trainer.config = replace(training.trainer.config, log_every=1)
        training.train()
        losses.append(training.column("train/loss"))
    assert losses[0] == losses[1]


def test_a_training_stopped_at_its_seam_keeps_both_checkpoints(tmp_path):
    class StopAtFour(NoStop):
        @property
        def reason(self):
            return "SIGTERM" if training.trainer.step == 4 else ""

    training = assemble(*MLP, *SEAM, directory=tmp_path)
    assert training.train(StopAtFour()).status == "interrupted"
    last, kept = (load_checkpoint(tmp_path / CHECKPOINTS / name) for name in ("last.pt", AT_SEAM))
    assert last.step == kept.step == 4
