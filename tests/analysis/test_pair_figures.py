"""The figures in a row of a table: those of the pairs that its differences are of."""

import statistics

import pytest
from synthetic_records import contaminated, failed, run, sweep

from ampsweep.analysis.comparison import compare


def arms(entries):
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    return {arm.arm: arm for arm in workload.arms}


def test_the_losses_of_an_arm_short_of_a_seed_agree_with_its_gap():
    found = arms(
        [
            *sweep("fp32", [100.0] * 3, val_loss=[2.0, 2.1, 2.9]),
            *sweep("tf32", [100.0] * 3, val_loss=[2.0, 2.1, 2.9]),
            *sweep("amp_bf16", [50.0] * 2, val_loss=[2.1, 2.2]),
            failed("amp_bf16", 2, "diverged", "loss is nan"),
        ]
    )
    short, baseline = found["amp_bf16"], found["fp32"]
    assert short.val_loss.mean < baseline.val_loss.mean, "of other seeds"
    assert short.loss_gap.value == pytest.approx(0.1)
    assert short.val_loss.mean == pytest.approx(2.15)


def test_runs_in_no_pair_are_in_no_row_of_pairs():
    found = arms(
        [
            *sweep("fp32", [100.0, 102.0, 98.0, 500.0], val_loss=[2.0, 2.1, 1.9, 9.0], peak_mib=[100, 100, 100, 900]),
            *sweep("amp_bf16", [50.0, 51.0, 49.0], val_loss=[2.01, 2.11, 1.91], peak_mib=80),
        ]
    )
    baseline, arm = found["fp32"], found["amp_bf16"]
    assert (baseline.val_loss.n, baseline.val_loss.mean) == (3, pytest.approx(2.0))
    assert baseline.step_ms / arm.step_ms == pytest.approx(arm.speedup.value)
    assert baseline.peak_memory_bytes - arm.peak_memory_bytes == pytest.approx(arm.memory_saved_bytes.value)
    assert arm.val_loss.mean - baseline.val_loss.mean == pytest.approx(arm.loss_gap.value)


def test_columns_agree_where_medians_would_not():
    found = arms(sweep("fp32", [10.0, 10.0, 16.0]) + sweep("amp_bf16", [11.0] * 3))
    assert found["amp_bf16"].speedup.value > 1
    assert statistics.median([10.0, 10.0, 16.0]) < 11.0
    assert found["fp32"].step_ms > found["amp_bf16"].step_ms


def test_step_times_are_of_the_pairs_that_were_left_alone():
    entries = [*sweep("fp32", [100.0, 120.0]), run("amp_bf16", step_ms=60.0), contaminated("amp_bf16", 1, step_ms=900)]
    found = arms([*entries, *sweep("tf32", [90.0, 95.0])])
    assert found["amp_bf16"].step_ms == 60.0


def test_an_arm_without_pairs_has_its_own_figures():
    found = arms([run("fp32"), run("amp_bf16", 7, step_ms=40.0, val_loss=2.5)])["amp_bf16"]
    assert (found.step_ms, found.val_loss.mean, found.speedup) == (40.0, 2.5, None)


def test_runs_that_nothing_checked_are_counted_beside_the_speed():
    unknown = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}
    found = arms(
        [
            run("fp32", 0, **unknown),
            run("fp32", 1),
            run("amp_bf16", 0, **unknown),
            run("amp_bf16", 1),
            run("amp_bf16", 5, **unknown),
        ]
    )
    assert (found["amp_bf16"].num_unchecked, found["amp_bf16"].num_timed) == (2, 4)
    assert (found["fp32"].num_unchecked, found["fp32"].num_timed) == (1, 2)
