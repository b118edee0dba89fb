"""A scale far too large: real overflow, steps skipped and counted, and a recovery that record, history and W&B tell."""

import math
import statistics
from itertools import pairwise

import pytest
from command_line import only_run
from wandb_file import read_wandb_file

INIT_SCALE = 1099511627776  # 2**40
GROWTH_INTERVAL = 25
NUM_STEPS = 150
AMP = ["amp/scale", "amp/growth_tracker", "amp/skipped_steps", "amp/applied_steps"]


@pytest.fixture
def overflowing(train):
    ended = train(
        "model=mlp_small",
        "tracking.mode=offline",
        "precision=amp_fp16",
        f"precision.init_scale={INIT_SCALE}",
        f"precision.growth_interval={GROWTH_INTERVAL}",
        f"trainer.steps={NUM_STEPS}",
        "trainer.log_every=1",
    )
    assert ended.code == 0
    return only_run()


def test_overflow_skips_steps_until_the_scale_fits(overflowing):
    history, summary = overflowing.history, overflowing.record.summary
    assert [row["step"] for row in history] == list(range(1, NUM_STEPS + 1))
    for row in history:
        assert row["amp/skipped_steps"] + row["amp/applied_steps"] == row["step"]

    num_first = sum(row["amp/applied_steps"] == 0 for row in history)
    assert num_first > 10
    scales = [row["amp/scale"] for row in history]
    assert scales[: num_first + 1] == [INIT_SCALE * 0.5**step for step in range(num_first + 1)]

    skipped = [after["amp/skipped_steps"] > before["amp/skipped_steps"] for before, after in pairwise(history)]
    grown = [row["amp/growth_tracker"] == 0 and not skip for row, skip in zip(history[1:], skipped, strict=True)]
    factors = [after / before for before, after in pairwise(scales[1:])]
    assert factors == [0.5 if skip else 2.0 if grow else 1.0 for skip, grow in zip(skipped, grown, strict=True)][:-1]
    assert 2.0 in factors, "after enough applied steps it grows again"

    assert overflowing.record.status == "completed"
    assert summary["amp/skipped_steps"] == history[-1]["amp/skipped_steps"] >= num_first
    assert summary["amp/applied_steps"] == history[-1]["amp/applied_steps"]

    tracked = read_wandb_file(overflowing.directory / overflowing.record.wandb.directory)
    assert tracked.history == [pytest.approx(row, rel=0, abs=0, nan_ok=True) for row in history]
    assert {key: tracked.summary[key] for key in AMP} == {key: summary[key] for key in AMP}
    assert tracked.config["arm"] == "amp_fp16+init_scale=1099511627776.0+growth_interval=25"


def test_the_model_learns_once_steps_are_applied(overflowing):
    losses = list(overflowing.column("train/loss").values())
    num_first = sum(row["amp/applied_steps"] == 0 for row in overflowing.history)
    assert all(map(math.isfinite, losses)), "it is the gradients that overflow"
    assert statistics.mean(losses[-10:]) < 0.3 * statistics.mean(losses[:num_first])


def test_a_skipped_step_does_not_advance_the_schedule(train):
    schedule = ("scheduler=constant", "scheduler.num_warmup_steps=9", "optimizer.lr=1e-3")
    too_large = ("precision=amp_fp16", f"precision.init_scale={INIT_SCALE}")
    train("model=mlp_small", "tracking=disabled", *too_large, *schedule, "trainer.steps=40", "trainer.log_every=1")
    history = only_run().history
    applied_before = [0.0, *(row["amp/applied_steps"] for row in history[:-1])]
    assert applied_before.count(0) > 10
    expected = [1e-3 * min((applied + 1) / 10, 1) for applied in applied_before]
    assert [row["train/lr"] for row in history] == pytest.approx(expected)


def test_a_scale_that_collapses_is_a_recorded_outcome(train):
    ended = train(
        "model=mlp_small",
        "tracking=disabled",
        "precision=amp_fp16",
        "precision.init_scale=1e-7",
        "optimizer.lr=1e30",
        "trainer.max_grad_norm=null",
        "trainer.steps=60",
        "trainer.log_every=1",
    )
    record = only_run().record
    assert ended.code == 0
    assert record.status == "diverged"
    assert "the scale collapsed" in record.error
