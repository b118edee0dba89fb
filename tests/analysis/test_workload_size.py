import pytest
from synthetic_records import failed, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.step_limits import SmallPeak


def cautions(**of_baseline):
    step_ms = of_baseline.pop("step_ms", 100.0)
    runs = sweep("fp32", [step_ms] * 3, **of_baseline) + sweep("amp_bf16", [step_ms / 2] * 3)
    (workload,) = compare(runs, baseline="fp32", margin_pct=1.0).workloads
    return workload.cautions


def test_steps_of_tiny_operators_are_too_small_to_judge_by():
    (limited,) = cautions(step_ms=6.1, num_operators=430)
    caution = limited.limit
    assert (caution.num_operators, caution.step_ms, caution.min_us_per_operator) == (430, 6.1, 50.0)
    assert caution.us_per_operator == pytest.approx(14.2, abs=0.1)


@pytest.mark.parametrize(
    ("device", "us_each", "small"), [("cpu", 49, True), ("cpu", 51, False), ("cuda:0", 19, True), ("cuda:0", 21, False)]
)
def test_the_threshold_is_that_of_the_device(device, us_each, small):
    found = cautions(step_ms=us_each * 1000 / 1000, num_operators=1000, facts={"device": device})
    assert bool(found) == small


def test_a_small_peak_is_too_small_for_the_saving_to_carry_over():
    assert cautions(peak_mib=63.0) == (SmallPeak(peak_bytes=63 * 2**20),)
    assert cautions(peak_mib=64.0) == ()


@pytest.mark.parametrize(
    "facts", [{"num_operators": None}, {"facts": {"compile": True}}, {"peak_mib": None}], ids=["count", "eager", "peak"]
)
def test_what_the_records_cannot_show_is_not_claimed(facts):
    small = {"step_ms": 1.0} if "peak_mib" not in facts else {}
    assert cautions(**small, **facts) == ()


def test_failed_baselines_give_no_caution():
    runs = [failed("fp32", 0, "oom", num_operators=430, step_ms=1.0), *sweep("amp_bf16", [1.0])]
    (workload,) = compare(runs, baseline="fp32", margin_pct=1.0).workloads
    assert workload.cautions == ()
