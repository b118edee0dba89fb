"""Rows wait for each other on the device; what is read at last is what each step left."""

import math

import pytest
import torch
from assembled import MLP, assemble

from ampsweep.recorder import recorder as recorder_module
from ampsweep.recorder.recorder import UnreadRows

CPU = torch.device("cpu")


def test_values_are_those_of_their_step_whatever_comes_after():
    rows, loss, count = UnreadRows(CPU), torch.tensor(1 / 3), torch.tensor(2**24 + 1)
    for step in (10, 20):
        rows.add(step, {"train/loss": loss, "amp/applied_steps": count, "train/lr": 0.1})
        loss += 1
        count += 1
    (step, first), (next_step, second) = rows.take()
    assert (step, next_step) == (10, 20)
    assert first == {"train/loss": torch.tensor(1 / 3).item(), "amp/applied_steps": 2**24 + 1, "train/lr": 0.1}
    assert second["amp/applied_steps"] == 2**24 + 2
    assert len(rows) == 0


def test_rows_may_differ_in_what_they_hold():
    rows = UnreadRows(CPU)
    rows.add(1, {"train/loss": torch.tensor(1.0), "train/grad_norm": torch.tensor(math.inf)})
    rows.add(2, {"val/loss": 0.5})
    rows.add(3, {"train/loss": torch.tensor(3.0, dtype=torch.bfloat16)})
    assert [values for _, values in rows.take()] == [
        {"train/loss": 1.0, "train/grad_norm": math.inf},
        {"val/loss": 0.5},
        {"train/loss": 3.0},
    ]


def test_they_are_full_at_their_capacity_and_empty_once_taken():
    rows = UnreadRows(CPU)
    while not rows.full:
        rows.add(len(rows), {"train/loss": torch.tensor(float(len(rows)))})
    assert [values["train/loss"] for _, values in rows.take()] == [float(n) for n in range(32)]
    assert not rows.full


def train(monkeypatch, flush_every_s, *overrides):
    monkeypatch.setattr(recorder_module, "FLUSH_EVERY_S", flush_every_s)
    training = assemble(*MLP, *overrides)
    return training, training.train()


@pytest.mark.parametrize("mode", ["fp32", "amp_fp16"])
def test_rows_read_together_are_those_read_one_by_one(monkeypatch, mode):
    overrides = (f"precision={mode}", "trainer.steps=80", "trainer.eval_every=30", "scheduler=cosine")
    at_once, _ = train(monkeypatch, 0.0, *overrides)
    together, _ = train(monkeypatch, math.inf, *overrides)
    shared = {"step", "train/loss", "train/lr", "train/grad_norm", "val/loss"}
    shared |= {"amp/scale", "amp/growth_tracker", "amp/skipped_steps", "amp/applied_steps"}
    one, other = ([{key: row[key] for key in shared & row.keys()} for row in each.rows] for each in (at_once, together))
    assert one == other
    assert len(one) == 80


@pytest.mark.parametrize("flush_every_s", [0.0, math.inf])
def test_a_divergence_is_the_last_row_whenever_it_is_read(monkeypatch, flush_every_s):
    training, ending = train(monkeypatch, flush_every_s, "optimizer=sgd", "optimizer.lr=1e30", "trainer.steps=20")
    assert ending.status == "diverged"
    assert math.isfinite(training.rows[-2]["train/loss"])
    assert not math.isfinite(training.rows[-1]["train/loss"])
    assert ending.error.endswith(f"at step {training.rows[-1]['step']}")


def test_rows_before_a_failing_step_are_logged(monkeypatch):
    monkeypatch.setattr(recorder_module, "FLUSH_EVERY_S", math.inf)
    training = assemble(*MLP, "trainer.steps=20")
    train_batch = training.trainer.data.train_batch

    def failing(index):
        if index == 10:
            raise OSError("the disk is gone")
        return train_batch(index)

    training.trainer.data.train_batch = failing
    with pytest.raises(OSError, match="the disk is gone"):
        training.train()
    assert [row["step"] for row in training.rows] == list(range(1, 11))
