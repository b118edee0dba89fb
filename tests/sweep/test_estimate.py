"""The seconds of planned runs, from a few steps and an evaluation of known durations."""

from types import SimpleNamespace

import pytest
import torch

from ampsweep.config.compose import compose_one
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.sweep import estimate
from ampsweep.training.trainer import Trainer

MLP = ("model=mlp_small", "model.hidden_size=16", "data=digits", "device=cpu", "trainer.steps=8")


@pytest.fixture
def durations(monkeypatch):
    """Seconds of the next steps, in order; an evaluation takes 5 s."""
    clock, steps = SimpleNamespace(now_s=0.0), []

    def spend(seconds):
        clock.now_s += seconds

    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    monkeypatch.setattr(Trainer, "train_step", lambda self: spend(steps.pop(0)))
    monkeypatch.setattr(Trainer, "evaluate", lambda self: spend(5.0))
    return steps


def seconds_of(configs):
    timed = zip(configs, estimate.time_runs(configs, StopRequest()), strict=True)
    return [None if taken is None else taken.seconds(config) for config, taken in timed]


@pytest.mark.parametrize(
    ("overrides", "expected_s"),
    [
        ((), 8 * 2 + 5),  # an evaluation at the end
        (("trainer.eval_every=4",), 8 * 2 + 2 * 5),
        (("trainer.eval_every=3",), 8 * 2 + 3 * 5),
        (("trainer.max_seconds=9",), 9 + 5),
        (("trainer.max_seconds=20", "trainer.eval_every=4"), 20 + 5),
        (("trainer.max_seconds=60", "trainer.eval_every=4"), 8 * 2 + 2 * 5),
    ],
)
def test_a_run_takes_its_steps_and_evaluations(durations, overrides, expected_s):
    durations += [3.0, 2.0, 1.0, 2.5]  # the first warms up
    assert seconds_of([compose_one((*MLP, *overrides))]) == [expected_s]


def test_a_slow_step_is_timed_once_and_seeds_share_it(durations, monkeypatch):
    durations += [10.0]
    seeds = [compose_one((*MLP, f"seed={seed}")) for seed in (0, 1)]
    assert seconds_of(seeds) == [8 * 10.0 + 5, 8 * 10.0 + 5]

    def too_large(trainer):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "train_step", too_large)
    assert seconds_of(seeds) == [None, None]
