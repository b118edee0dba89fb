"""The spread of steps within a run is told where there are too few runs, and decides nothing."""

import pytest
from synthetic_records import contaminated, run

from ampsweep.analysis.comparison import compare


def timed(arm, seed, step_ms, iqr, p95):
    directory, record = run(arm, seed, step_ms=step_ms)
    record.summary |= {"perf/step_ms_iqr": iqr, "perf/step_ms_p95": p95}
    return directory, record


def pairs(num_pairs):
    """bf16 twice as fast in each pair, and steady within its runs."""
    return [
        entry
        for seed in range(num_pairs)
        for entry in (timed("fp32", seed, 100.0, 2.0 + seed, 110.0), timed("amp_bf16", seed, 50.0, 0.5, 51.0))
    ]


def workload(entries):
    (only,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    return only


@pytest.mark.parametrize("num_pairs", [1, 2])
def test_fewer_than_three_pairs_tell_the_spread_within_runs(num_pairs):
    found = workload(pairs(num_pairs))
    baseline, bf16 = found.arms
    assert (bf16.within_run.num_runs, bf16.within_run.step_ms_iqr, bf16.within_run.step_ms_p95) == (num_pairs, 0.5, 51)
    assert baseline.within_run.step_ms_iqr == pytest.approx(2.0 if num_pairs == 1 else 2.5)
    assert bf16.speedup.interval is None
    (verdict,) = found.verdict.arms
    assert verdict.judgements.speed == "too few pairs"
    assert found.verdict.recommendation.arm is None


def test_three_pairs_speak_for_themselves():
    assert [arm.within_run for arm in workload(pairs(3)).arms] == [None, None]


def test_a_contaminated_run_tells_nothing_of_its_steps():
    lost = contaminated("amp_bf16", 0)
    lost[1].summary |= {"perf/step_ms_iqr": 1.0, "perf/step_ms_p95": 2.0}
    found = workload([*pairs(1)[:1], lost])
    assert found.arms[1].within_run is None
    assert found.arms[0].within_run is not None


def test_a_record_without_the_spread_has_none():
    assert workload([run("fp32"), run("amp_bf16")]).arms[0].within_run is None
