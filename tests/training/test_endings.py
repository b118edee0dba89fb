"""Why a training ends: done, cut short, stopped, or diverged; and what is left of it then."""

import math
from dataclasses import dataclass

import pytest
import torch
from assembled import MLP, StopAfter, assemble

from ampsweep.tasks.classification import Classification
from ampsweep.training.checkpoint import load_checkpoint

BROKEN = (*MLP, "optimizer=sgd", "trainer.max_grad_norm=null")


class NeverValid(Classification):
    """Its validation loss is no number."""

    def evaluate(self, model, batch):
        return {"loss": torch.tensor(math.nan)}, len(batch[0])


def test_a_training_ends_with_a_row_and_an_evaluation():
    training = assemble(*MLP, "trainer.steps=5", "trainer.log_every=2")
    ending = training.train()
    assert (ending.status, ending.error, ending.cut_short) == ("completed", None, None)
    assert list(training.column("train/loss")) == [2, 4, 5]
    assert list(training.column("val/loss")) == list(training.column("val/accuracy")) == [5]
    assert training.saved == []


def test_evaluations_and_checkpoints_come_as_often_as_asked():
    training = assemble(*MLP, "trainer.steps=7", "trainer.eval_every=3", "trainer.checkpoint_every=2")
    training.train()
    assert list(training.column("val/loss")) == [3, 6, 7]
    assert training.saved == [2, 4, 6]


def test_time_that_is_up_cuts_it_short_after_the_step_it_is_in():
    training = assemble(*MLP, "trainer.steps=100", "trainer.log_every=50", "trainer.max_seconds=1e-6")
    ending = training.train()
    assert (ending.status, ending.error) == ("completed", None)
    assert ending.cut_short == "trainer.max_seconds=1e-06 reached after step 1 of 100"
    assert list(training.column("val/loss")) == [1]


def test_time_that_is_up_in_the_last_step_cuts_nothing():
    assert assemble(*MLP, "trainer.steps=1", "trainer.max_seconds=1e-6").train().cut_short is None


def test_a_stopped_run_leaves_a_checkpoint_of_that_step(tmp_path):
    training = assemble(*MLP, "trainer.steps=9", "trainer.log_every=50", directory=tmp_path)
    ending = training.train(StopAfter(4))
    assert (ending.status, ending.error) == ("interrupted", "SIGTERM after step 4 of 9")
    checkpoint = load_checkpoint(tmp_path / "checkpoints/last.pt")
    assert (checkpoint.step, checkpoint.next_batch, checkpoint.applied_steps) == (4, 4, 4)
    assert (checkpoint.config_hash, checkpoint.model_name, checkpoint.arm) == ("hash", "my_model", "my_arm")
    assert list(training.column("train/loss")) == [4]
    assert training.column("val/loss") == {}, "whoever stops it waits for no evaluation"


def test_a_checkpoint_due_at_the_stop_is_written_once():
    training = assemble(*MLP, "trainer.steps=9", "trainer.checkpoint_every=4")
    training.train(StopAfter(4))
    assert training.saved == [4]


def test_a_stop_in_the_last_step_comes_too_late():
    training = assemble(*MLP, "trainer.steps=4")
    assert training.train(StopAfter(4)).status == "completed"
    assert training.saved == []


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_a_loss_that_is_no_number_diverges(precision):
    training = assemble(
        *BROKEN, f"precision={precision}", "optimizer.lr=1e30", "trainer.steps=20", "trainer.checkpoint_every=1"
    )
    ending = training.train()
    step = training.trainer.step
    loss = training.rows[-1]["train/loss"]
    assert not math.isfinite(loss)
    assert 1 < step < 20
    assert (ending.status, ending.error) == ("diverged", f"the training loss is {loss} at step {step}")
    assert training.saved == list(range(1, step)), "what is broken is not saved"


def test_a_validation_loss_that_is_no_number_diverges():
    ending = assemble(*MLP, "trainer.steps=4", "trainer.eval_every=2", task=NeverValid()).train()
    assert (ending.status, ending.error) == ("diverged", "the validation loss is nan at step 2")


def test_a_scale_that_collapses_diverges():
    training = assemble(
        *BROKEN, "precision=amp_fp16", "precision.init_scale=1e-6", "optimizer.lr=1e30", "trainer.steps=30"
    )
    ending = training.train()
    assert ending.status == "diverged"
    assert ending.error.startswith("the scale collapsed to ")
    assert training.rows[-1]["amp/scale"] < 2.0**-24 <= training.rows[-2]["amp/scale"]


FP16 = (*MLP, "precision=amp_fp16", "precision.init_scale=1024", "trainer.max_grad_norm=null")


@dataclass
class BrokenFrom(Classification):
    """Its training loss is no number, or its gradient overflows, in the batches from one on, up to another."""

    batch: int = 1
    to: int = 10**6
    factor: float = math.nan

    def __post_init__(self):
        super().__init__()
        self.seen = 0

    def loss(self, model, batch):
        self.seen += 1
        loss = super().loss(model, batch)
        return loss * self.factor if self.batch <= self.seen <= self.to else loss


def ended(task, *overrides):
    """How a training of this task ends, and its last step."""
    training = assemble(*FP16, *overrides, task=task)
    ending = training.train()
    return ending.status, ending.error, training.trainer.step


@pytest.mark.parametrize(("log_every", "step", "since"), [(1, 24, 4), (5, 25, 5), (10, 30, 10)])
def test_a_loss_that_stays_no_number_ends_it(log_every, step, since, monkeypatch):
    """From the fifth step on; a scale takes 34 skipped steps to collapse."""
    why = f"the training loss is nan at step {step}, and no step since step {since} was applied"
    monkeypatch.setattr("ampsweep.recorder.recorder.FLUSH_EVERY_S", 0)  # on a fast machine rows are read later
    assert ended(BrokenFrom(5), "trainer.steps=60", f"trainer.log_every={log_every}") == ("diverged", why, step)


@pytest.mark.parametrize(("log_every", "num_skipped"), [(1, 7), (5, 7), (7, 5), (40, 7)])
def test_a_training_that_ends_on_skipped_steps_diverges(log_every, num_skipped):
    """From the sixth step on; where a row comes between, only the steps after it are known to be skipped."""
    status, error, _ = ended(BrokenFrom(6), "trainer.steps=12", f"trainer.log_every={log_every}")
    why = f"the training loss is nan at step 12, and none of the last {num_skipped} steps was applied"
    assert (status, error) == ("diverged", why)


def test_skipped_steps_at_the_end_count_whatever_their_loss():
    """The scale was right for the parameters, which have not changed since."""
    status, error, _ = ended(BrokenFrom(5, factor=1e36), "trainer.steps=20", "trainer.log_every=8")
    assert (status, error) == ("diverged", "none of the last 12 of 20 steps was applied; the scale is 0.03125 by now")


@pytest.mark.parametrize(
    ("broken", "steps"),
    [
        ((5, 20), 24),  # sixteen bad batches, and then good ones
        ((11, 12), 12),  # two at the very end
        ((12, 99, 1e36), 20),  # nine steps skipped with a finite loss
    ],
    ids=["it recovers", "two bad batches", "the scale falls"],
)
@pytest.mark.parametrize("log_every", [1, 10])
def test_some_skipped_steps_are_no_divergence(broken, steps, log_every):
    assert ended(BrokenFrom(*broken), f"trainer.steps={steps}", f"trainer.log_every={log_every}")[0] == "completed"


@pytest.mark.parametrize("init_scale", [2**24, 2**40])
def test_overflow_at_too_large_a_scale_is_no_divergence(init_scale):
    training = assemble(*MLP, "precision=amp_fp16", f"precision.init_scale={init_scale}", "trainer.steps=40")
    assert training.train().status == "completed"
    assert training.rows[-1]["amp/skipped_steps"] > 4


def test_a_training_whose_every_step_was_skipped_is_none():
    training = assemble(*MLP, "precision=amp_fp16", "precision.init_scale=1099511627776", "trainer.steps=5")
    ending = training.train()
    assert ending.status == "diverged"
    assert ending.error == "none of the 5 steps was applied; the scale is 6.87195e+10 by now"
