"""Warm-up lasts for steps and for time; the traced step is not its last; a run that is too short says so."""

import pytest
import torch
from assembled import CPU, MLP, NoStop, assemble, composed
from devices import needs_cuda

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash
from ampsweep.recorder import instruments
from ampsweep.training import assembly
from ampsweep.training.components.built import build, build_data
from ampsweep.training.components.device import resolve_device

STEP_S = 0.01


@pytest.fixture
def clock(monkeypatch):
    """Time passes by 10 ms with each batch, and otherwise only for the instruments that ask for it."""

    class Clock:
        now_s = 0.0

    monkeypatch.setattr(instruments, "perf_counter", lambda: Clock.now_s)
    return Clock


def trained(clock, *overrides):
    training = assemble(*MLP, *overrides)
    data, traced = training.trainer.data, []

    class TimedData:
        batch_size = data.batch_size

        def train_batch(self, index):
            clock.now_s += STEP_S
            return data.train_batch(index)

        def val_batches(self):
            return data.val_batches()

    training.trainer.data = TimedData()
    own = training.trainer.instruments
    enclose = own._traced_step

    def note():
        traced.append(own.num_steps_seen + 1)
        return enclose()

    own._traced_step = note
    training.train()
    return own, traced


def test_it_lasts_until_both_steps_and_seconds_have_passed(clock):
    own, _ = trained(clock, "trainer.steps=40", "trainer.warmup_steps=5", "trainer.warmup_seconds=0.095")
    assert own.num_warmup_steps == 12  # ten steps after the traced one, the second
    assert len(own._clock._steady.step_ms) == 28
    own, _ = trained(clock, "trainer.steps=40", "trainer.warmup_steps=15", "trainer.warmup_seconds=0.095")
    assert own.num_warmup_steps == 15


def test_a_run_within_its_warmup_has_no_speed_and_says_why(clock):
    own, _ = trained(clock, "trainer.steps=10", "trainer.warmup_seconds=2")
    assert not [key for key in own.summary() if key.startswith("perf/")]
    assert "before its warm-up (2 steps and 2 s) was over" in own.absent()["perf/step_ms"]
    assert own.contamination(None).verdict == "unknown"


def test_a_run_with_a_speed_says_nothing(clock):
    own, _ = trained(clock, "trainer.steps=10", "trainer.warmup_seconds=0.05")
    assert own.summary()["perf/step_ms"] > 0
    assert own.absent() == {}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16"])
def test_the_second_step_is_traced_with_any_optimizer(optimizer, precision, clock):
    _, traced = trained(
        clock,
        f"optimizer={optimizer}",
        f"precision={precision}",
        "precision.init_scale=16",
        "trainer.steps=20",
        "trainer.warmup_steps=10",
    )
    assert traced == [2]


def test_the_step_after_the_first_applied_one_is_traced(clock):
    skips = (
        "precision=amp_fp16",
        "precision.init_scale=1e12",
        "precision.backoff_factor=1e-3",
        "optimizer.fused=false",
    )
    _, traced = trained(clock, "optimizer=sgd", *skips, "trainer.steps=20", "trainer.warmup_steps=10")
    assert len(traced) == 1
    assert 2 < traced[0] < 10


@pytest.mark.parametrize(("warmup_steps", "traced_step"), [(10, 9), (3, 2)])
def test_with_all_steps_skipped_an_ordinary_one_ends_warmup(warmup_steps, traced_step, clock):
    skips = (
        "precision=amp_fp16",
        "precision.init_scale=1e30",
        "precision.backoff_factor=0.999",
        "optimizer.fused=false",
    )
    own, traced = trained(clock, *skips, "trainer.steps=20", f"trainer.warmup_steps={warmup_steps}")
    assert traced == [traced_step]
    assert own.num_warmup_steps == warmup_steps


def test_a_traced_step_does_not_end_warmup(clock):
    own, traced = trained(clock, "trainer.steps=4", "trainer.warmup_steps=2")
    assert (traced, own.num_warmup_steps) == ([2], 3)


def test_by_default_only_an_accelerator_needs_time():
    config = composed(*MLP)
    assert assembly.warmup_seconds(config, CPU) == 0
    assert assembly.warmup_seconds(config, torch.device("cuda", 0)) == 2
    config = composed(*MLP, "trainer.warmup_seconds=0.5")
    assert assembly.warmup_seconds(config, torch.device("cuda", 0)) == 0.5


def test_the_default_leaves_a_finished_point_finished():
    default, other = (compose_one((*MLP, f"trainer.warmup_seconds={value}")) for value in ("null", "3"))
    assert config_hash(default) == config_hash(compose_one(MLP)) != config_hash(other)


def test_less_than_no_time_is_refused():
    with pytest.raises(UserError, match=r"trainer.warmup_seconds=-1: must not be negative"):
        compose_one((*MLP, "trainer.warmup_seconds=-1"))


@needs_cuda
def test_on_cuda_clocks_rise_before_steps_are_timed():
    """The run takes some seconds; its figures leave out two of them, its memory only the steps."""
    overrides = (*MLP, "device=cuda", "tracking=disabled", "trainer.steps=20000", "trainer.max_seconds=6")
    config = compose_one(overrides)
    device = resolve_device("cuda")
    trainer = assembly.assemble_trainer(config, build(config, device, build_data(config, device)), device)
    with trainer.instruments as own:
        trainer.train(NoStop())
    summary = own.summary()
    assert own.num_warmup_steps > 10
    assert own.num_warmup_steps * summary["perf/step_ms"] < 6000
    assert {"perf/launch_ms", "perf/device_lag_ms", "memory/num_retries", "memory/num_refused"} <= summary.keys()
    assert own.absent() == {}
