import pytest
from synthetic_records import failed, sweep

from ampsweep.analysis.comparison import compare


def cautions(**of_baseline):
    step_ms = of_baseline.pop("step_ms", 100.0)
    runs = sweep("fp32", [step_ms] * 3, **of_baseline) + sweep("amp_bf16", [step_ms / 2] * 3)
    (workload,) = compare(runs, baseline="fp32", margin_pct=1.0).workloads
    return workload.conclusion


def test_steps_of_tiny_operators_are_too_small_to_judge_speed_by_and_the_evidence_is_given():
    conclusion = cautions(step_ms=6.1, num_operators=430)
    assert "too small to judge speed by (430 operators in 6.10 ms, 14 us each" in conclusion.sentence
    assert "amp_bf16 (n=3): 2.00x" in conclusion.sentence, "the figures are still given"


@pytest.mark.parametrize(
    ("device", "us_each", "small"), [("cpu", 49, True), ("cpu", 51, False), ("cuda:0", 19, True), ("cuda:0", 21, False)]
)
def test_the_threshold_is_that_of_the_device(device, us_each, small):
    conclusion = cautions(step_ms=us_each * 1000 / 1000, num_operators=1000, facts={"device": device})
    assert bool(conclusion.cautions) == small


def test_a_small_peak_is_too_small_for_the_saving_to_carry_over():
    conclusion = cautions(peak_mib=63.0)
    assert "a peak of 63.0 MiB is too small for the memory figures to carry over" in conclusion.sentence
    assert cautions(peak_mib=64.0).cautions == ()


@pytest.mark.parametrize(
    "facts", [{"num_operators": None}, {"facts": {"compile": True}}, {"peak_mib": None}], ids=["count", "eager", "peak"]
)
def test_what_the_records_cannot_show_is_not_claimed(facts):
    small = {"step_ms": 1.0} if "peak_mib" not in facts else {}
    assert cautions(**small, **facts).cautions == ()


def test_failed_baselines_give_no_caution():
    runs = [failed("fp32", 0, "oom", num_operators=430, step_ms=1.0), *sweep("amp_bf16", [1.0])]
    (workload,) = compare(runs, baseline="fp32", margin_pct=1.0).workloads
    assert workload.conclusion.cautions == ()
