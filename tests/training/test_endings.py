"""The endings of a training: completed, cut short, stopped or diverged, and what each leaves behind."""

import itertools
import math

import pytest
import torch
from assembled import MLP, StopAfter, assemble, trained

from ampsweep.recorder.divergence import Ending
from ampsweep.tasks.classification import Classification
from ampsweep.training.checkpoint import load_checkpoint

SGD = (*MLP, "optimizer=sgd", "trainer.max_grad_norm=null")
FP16 = (*MLP, "precision=amp_fp16", "precision.init_scale=1024", "trainer.max_grad_norm=null")


def test_rows_evaluations_and_checkpoints_come_as_often_as_asked():
    training = assemble(*MLP, "trainer.steps=5", "trainer.log_every=2")
    assert training.train() == Ending("completed")
    assert list(training.column("train/loss")) == [2, 4, 5]
    assert list(training.column("val/loss")) == list(training.column("val/accuracy")) == [5]
    assert training.saved == []
    training = trained(*MLP, "trainer.steps=7", "trainer.eval_every=3", "trainer.checkpoint_every=2")
    assert list(training.column("val/loss")) == [3, 6, 7]
    assert training.saved == [2, 4, 6]


def test_a_time_limit_cuts_a_training_short():
    training = assemble(*MLP, "trainer.steps=100", "trainer.log_every=50", "trainer.max_seconds=1e-6")
    assert training.train() == Ending("completed", None, "trainer.max_seconds=1e-06 reached after step 1 of 100")
    assert list(training.column("val/loss")) == [1]
    assert assemble(*MLP, "trainer.steps=1", "trainer.max_seconds=1e-6").train().cut_short is None, "in the last step"


def test_a_stopped_run_leaves_a_single_checkpoint_of_that_step(tmp_path):
    often = ("trainer.log_every=50", "trainer.checkpoint_every=4")
    training = assemble(*MLP, "trainer.steps=9", *often, directory=tmp_path)
    assert training.train(StopAfter(4)) == Ending("interrupted", "SIGTERM after step 4 of 9")
    checkpoint = load_checkpoint(tmp_path / "checkpoints/last.pt")
    assert (checkpoint.step, checkpoint.next_batch, checkpoint.applied_steps) == (4, 4, 4)
    assert (checkpoint.config_hash, checkpoint.model_name, checkpoint.arm) == ("hash", "my_model", "my_arm")
    assert list(training.column("train/loss")) == training.saved == [4]
    assert training.column("val/loss") == {}, "a stop waits for no evaluation"
    training = assemble(*MLP, "trainer.steps=4")
    assert training.train(StopAfter(4)).status == "completed", "a stop in the last step comes too late"
    assert training.saved == []


def test_a_loss_that_is_not_finite_diverges():
    training = assemble(*SGD, "optimizer.lr=1e30", "trainer.steps=20", "trainer.checkpoint_every=1")
    ending = training.train()
    step, loss = training.trainer.step, training.rows[-1]["train/loss"]
    assert not math.isfinite(loss)
    assert 1 < step < 20
    assert ending == Ending("diverged", f"the training loss is {loss} at step {step}")
    assert training.saved == list(range(1, step)), "a diverged state is not saved"


class NeverValid(Classification):
    def evaluate(self, model, batch):
        return {"loss": torch.tensor(math.nan)}, len(batch[0])


def test_a_validation_loss_or_scale_that_breaks_diverges():
    ending = assemble(*MLP, "trainer.steps=4", "trainer.eval_every=2", task=NeverValid()).train()
    assert ending == Ending("diverged", "the validation loss is nan at step 2")
    settings = ("precision=amp_fp16", "precision.init_scale=1e-6", "optimizer.lr=1e30", "trainer.steps=30")
    training = assemble(*SGD, *settings)
    ending = training.train()
    assert ending.status == "diverged"
    assert ending.error.startswith("the scale collapsed to ")
    assert training.rows[-1]["amp/scale"] < 2.0**-24 <= training.rows[-2]["amp/scale"]


class Broken(Classification):
    """Its training loss is multiplied by `factor` in the batches from `first` to `last`."""

    def __init__(self, first, last=10**6, factor=math.nan):
        super().__init__()
        self.factors = (factor if first <= number <= last else 1.0 for number in itertools.count(1))

    def loss(self, model, batch):
        return super().loss(model, batch) * next(self.factors)


NAN_AT_12 = "the training loss is nan at step 12, and none of the last {} steps was applied"


@pytest.mark.parametrize(
    ("broken", "steps", "log_every", "error"),
    [
        # From the fifth step on; a scale takes 34 skipped steps to collapse.
        ((5,), 60, 1, "the training loss is nan at step 24, and no step since step 4 was applied"),
        ((5,), 60, 10, "the training loss is nan at step 30, and no step since step 10 was applied"),
        # From the sixth step on; where a row comes between, only the steps after it are known to be skipped.
        *(((6,), 12, log_every, NAN_AT_12.format(number)) for log_every, number in ((1, 7), (5, 7), (7, 5), (40, 7))),
        # The scale was right for the parameters, which have not changed since.
        ((5, 99, 1e36), 20, 8, "none of the last 12 of 20 steps was applied; the scale is 0.03125 by now"),
        ((5, 20), 24, 1, None),  # sixteen bad batches, and then good ones
        ((5, 20), 24, 10, None),
        ((11, 12), 12, 1, None),  # two at the very end
        ((12, 99, 1e36), 20, 10, None),  # nine steps skipped with a finite loss
    ],
)
def test_steps_that_stay_skipped_diverge(broken, steps, log_every, error, monkeypatch):
    monkeypatch.setattr("ampsweep.recorder.recorder.FLUSH_EVERY_S", 0)  # on a fast machine rows are read later
    training = assemble(*FP16, f"trainer.steps={steps}", f"trainer.log_every={log_every}", task=Broken(*broken))
    assert training.train() == Ending("completed" if error is None else "diverged", error)


def test_overflow_is_no_divergence_unless_it_stays():
    for init_scale in (2**24, 2**40):
        training = trained(*MLP, "precision=amp_fp16", f"precision.init_scale={init_scale}", "trainer.steps=40")
        assert training.rows[-1]["amp/skipped_steps"] > 4
    ending = assemble(*MLP, "precision=amp_fp16", "precision.init_scale=1099511627776", "trainer.steps=5").train()
    assert ending == Ending("diverged", "none of the 5 steps was applied; the scale is 6.87195e+10 by now")
