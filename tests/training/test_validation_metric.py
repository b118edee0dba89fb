"""What follows the validation metric: the best weights, early stopping, and ReduceLROnPlateau."""

import math

import pytest
import torch
from assembled import GPT, MLP, StopAfter, assemble, assert_resumes_bitwise, resumed, trained
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ampsweep.recorder.divergence import Ending

EACH = ("trainer.eval_every=1", "trainer.log_every=1")
PLATEAU = ("scheduler=plateau", "scheduler.patience=1", "scheduler.factor=0.5", "optimizer.lr=0.3", "optimizer=sgd")
PATIENT = ("trainer.patience=3", "trainer.eval_every=2")


def following(values, *overrides, num_steps=None):
    """Train with an evaluation after each step, of the next of these values; returns the training and its ending."""
    num_steps = num_steps or len(values)
    kept = []
    training = assemble(*MLP, *EACH, f"trainer.steps={num_steps}", *overrides, directory=None)
    trainer, key = training.trainer, training.config.trainer.metric.removeprefix("val/")
    trainer._keep_best = lambda trainer: kept.append(trainer.step)

    def evaluate(model, batch):
        loss = {} if key == "loss" else {"loss": torch.tensor(1.0)}
        return {**loss, key: torch.tensor(values[trainer.step - 1], dtype=torch.float64)}, len(batch[0])

    training.built.task.evaluate = evaluate
    return training, training.train(), kept


def test_training_stops_when_the_metric_no_longer_improves():
    values = [5.0, 4.0, 3.0, 3.5, 3.0, 3.25, 2.0]
    training, ending, kept = following(values, "trainer.patience=3")
    why = "trainer.patience=3 reached by val/loss, best 3 at step 3, after step 6 of 7"
    assert ending == Ending("completed", cut_short=why, stopped_early=True)
    assert kept == [1, 2, 3]
    assert list(training.column("val/loss").values()) == values[:6]
    assert training.rows[-1].keys() >= {"train/loss", "val/loss"}, "the last step has its whole row"
    assert training.trainer.validation.best.values == {"val/loss": 3.0}
    _, ending, kept = following(values, "trainer.patience=4")
    assert (ending, kept) == (Ending("completed"), [1, 2, 3, 7])
    _, ending, kept = following(values, "trainer.patience=3", num_steps=6)
    assert ending == Ending("completed"), "its patience ends with its steps"


@pytest.mark.parametrize(
    ("values", "settings", "stop", "best"),
    [
        ([5.0, 4.5, 4.1, 3.9, 3.8], ("trainer.min_delta=1",), 3, [1, 2, 3]),  # better than 5, but not by 1
        ([0.1, 0.3, 0.2, 0.3, 0.4], ("trainer.metric=val/accuracy",), 4, [1, 2]),
        ([0.1, 0.3, 0.2, 0.3, 0.4], ("trainer.metric=val/f1", "trainer.goal=maximize"), 4, [1, 2]),
        ([0.1, 0.3, 0.2, 0.3, 0.4], ("trainer.metric=val/f1", "trainer.goal=minimize"), 3, [1]),
        ([math.nan, 0.5, math.nan, math.inf], ("trainer.metric=val/f1", "trainer.goal=maximize"), 4, [2]),
    ],
)
def test_better_is_what_the_goal_says_by_the_least_improvement(values, settings, stop, best):
    training, ending, kept = following(values, "trainer.patience=2", *settings, num_steps=9)
    assert (training.trainer.step, kept) == (stop, best)
    assert ending.stopped_early


def test_a_metric_that_no_evaluation_gives_is_named():
    settings = ("trainer.eval_every=1", "trainer.patience=1", "trainer.metric=val/f1", "trainer.goal=maximize")
    with pytest.raises(ValueError, match=r"^trainer.metric=val/f1: an evaluation here gives val/loss, val/accuracy$"):
        trained(*MLP, *settings, "trainer.steps=1")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_plateau_reduces_learning_rates_as_torch_does(optimizer):
    settings = ("precision=amp_fp16", "trainer.steps=40", f"optimizer={optimizer}", "optimizer.lr=0.5")
    training = trained(*MLP, *EACH, *PLATEAU, *settings, "trainer.eval_every=2", "scheduler.threshold=0.2")
    rates = training.column("train/lr")
    by_hand = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    torchs = ReduceLROnPlateau(by_hand, patience=1, factor=0.5, threshold=0.2)
    for step in range(1, 41):
        assert rates[step] == by_hand.param_groups[0]["lr"], "the rate that the step was taken with"
        if step % 2 == 0:
            torchs.step(training.column("val/loss")[step])
    assert len({*rates.values()}) > 3


@pytest.mark.parametrize(
    "settings",
    [
        (*MLP, *PLATEAU, "precision=amp_fp16", "scheduler.threshold=0.2", "trainer.eval_every=1"),
        (*MLP, *PATIENT, "optimizer.lr=0.05", "trainer.min_delta=0.2"),
        (*GPT, *PATIENT, *PLATEAU, "precision=amp_bf16", "trainer.min_delta=0.002"),
    ],
    ids=["plateau", "patience", "both"],
)
@pytest.mark.parametrize("stop_after", [5, 7])
def test_what_followed_the_metric_goes_on_bitwise(settings, stop_after, tmp_path):
    whole = assert_resumes_bitwise(tmp_path, *settings, "trainer.steps=30", stop_after=stop_after)
    rest, _ = resumed(tmp_path, *settings, "trainer.steps=30")
    ending = rest.train()
    assert rest.trainer.step == whole.trainer.step
    assert rest.trainer.validation.evaluations == whole.trainer.validation.evaluations
    assert rest.trainer.validation.best == whole.trainer.validation.best
    if any(setting.startswith("trainer.patience") for setting in settings):
        assert ending.stopped_early
        assert stop_after < whole.trainer.step < 30


def test_a_checkpoint_at_the_early_end_has_nothing_left(tmp_path):
    settings = (*MLP, *PATIENT, "optimizer.lr=0.05", "trainer.min_delta=0.2", "trainer.steps=30")
    whole = assemble(*settings, "trainer.checkpoint_every=2", directory=tmp_path)
    ending = whole.train()
    rest, _ = resumed(tmp_path, *settings)
    assert rest.train() == ending
    assert rest.trainer.step == whole.trainer.step
    assert rest.trainer.recorder.values["val/loss"] == whole.rows[-1]["val/loss"]


def test_a_plateau_goes_on_from_this_runs_own_rate(tmp_path):
    settings = (*MLP, *EACH, *PLATEAU, "scheduler.patience=0", "scheduler.threshold=0.9", "trainer.steps=9")
    assemble(*settings, directory=tmp_path).train(StopAfter(4))
    rest, notes = resumed(tmp_path, *settings, "optimizer.lr=0.1")
    rest.train()
    assert notes == []
    assert rest.column("train/lr")[5] == pytest.approx(0.1 * 0.5**3)
