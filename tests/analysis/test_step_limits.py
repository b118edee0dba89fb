"""What limits the step of an arm besides its arithmetic, told of each arm by its own runs."""

import pytest
from synthetic_records import contaminated, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.step_limits import IdleDevice, LimitedBaseline, SmallStep, WaitForData

GPU = {"facts": {"device": "cuda:0", "device_name": "a GPU"}}


def arms(entries):
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    return {arm.arm: arm for arm in workload.arms}, workload


def with_figures(arm, seed=0, *, figures, **more):
    directory, record = run(arm, seed, **(GPU | more))
    record.summary |= figures
    return directory, record


def recipe():
    """The recipe on a fast GPU: fp32 computes for 41 us an operator, amp_bf16 has no more than 8."""
    return [
        *sweep("fp32", [2.70, 2.71, 2.69], num_operators=66, **GPU),
        *sweep("amp_bf16", [0.76, 0.761, 0.759], num_operators=95, **GPU),
    ]


def test_an_arm_may_be_launch_bound_where_the_baseline_is_not():
    found, workload = arms(recipe())
    assert found["fp32"].limits == ()
    (limit,) = found["amp_bf16"].limits
    assert isinstance(limit, SmallStep)
    assert (limit.num_operators, limit.us_per_operator) == (95, pytest.approx(8.0))
    assert (found["fp32"].num_operators, found["fp32"].us_per_operator) == (66, pytest.approx(40.9, abs=0.1))
    assert workload.verdict.arms[0].judgements.figures.limits == (limit,)
    assert workload.cautions == (), "the workload as a whole is not too small"


@pytest.mark.parametrize(("us_each", "device", "limited"), [(49, "cpu", True), (25, "cuda:0", False)])
def test_an_arm_is_held_against_the_threshold_of_its_device(us_each, device, limited):
    facts = {"facts": {"device": device}}
    found, _ = arms([run("fp32", step_ms=100.0, **facts), run("amp_bf16", step_ms=0.4 * us_each, **facts)])
    assert bool(found["amp_bf16"].limits) == limited


def test_compiled_arms_are_not_judged_by_their_eager_operators():
    compiled = {"facts": {"device": "cuda:0", "compile": True}}
    found, _ = arms([run("fp32", step_ms=1.0, **compiled), run("amp_bf16", step_ms=0.5, **compiled)])
    assert found["amp_bf16"].limits == ()
    assert found["amp_bf16"].us_per_operator is None


@pytest.mark.parametrize(("launch_ms", "limited"), [(0.74, True), (0.5, False)])
def test_the_measured_time_of_launching_decides_where_it_is(launch_ms, limited):
    """At 8 us an operator a fast host may still be ahead of its device."""
    arm = with_figures("amp_bf16", step_ms=0.76, num_operators=95, figures={"perf/launch_ms": launch_ms})
    found, _ = arms([run("fp32", step_ms=2.7, num_operators=66, **GPU), arm])
    assert [limit.launch_ms for limit in found["amp_bf16"].limits] == [0.74] * limited


@pytest.mark.parametrize(("lag_ms", "limited"), [(1.0, True), (40.0, False)])
def test_a_host_that_waits_for_a_full_queue_limits_no_step(lag_ms, limited):
    """20,000 kernels are launched as the device takes them, and at the end it is a queue of them behind."""
    figures = {"perf/launch_ms": 480.0, "perf/device_lag_ms": lag_ms}
    found, _ = arms([with_figures("fp32", step_ms=500.0, num_operators=20_000, figures=figures)])
    assert [limit.kind() for limit in found["fp32"].limits] == ["small_step"] * limited


def test_a_compiled_arm_is_judged_by_its_measured_launching():
    facts = {"facts": {"device": "cuda:0", "compile": True}}
    found, workload = arms([with_figures("fp32", step_ms=1.0, figures={"perf/launch_ms": 0.95}, **facts)])
    (limit,) = found["fp32"].limits
    assert (limit.launch_ms, limit.num_operators) == (0.95, None)
    assert workload.cautions == (LimitedBaseline(limit=limit),)


def test_waiting_for_data_limits_a_device_that_is_not_busy():
    waits = {"perf/data_wait_ms": 30.0}
    found, _ = arms(
        [
            with_figures("fp32", figures=waits | {"device/utilization_pct": 99.0}),
            with_figures("amp_bf16", figures=waits | {"device/utilization_pct": 60.0}),
            with_figures("amp_fp16", figures=waits),
        ]
    )
    assert found["fp32"].limits == (), "the device computed while the host waited"
    assert found["amp_bf16"].limits == found["amp_fp16"].limits == (WaitForData(wait_ms=30.0, step_ms=100.0),)


def test_a_gpu_that_idles_for_no_other_reason_waits_for_its_host():
    found, workload = arms(
        [
            with_figures("fp32", figures={"device/utilization_pct": 70.0}),
            with_figures("amp_bf16", figures={"device/utilization_pct": 99.0}),
        ]
    )
    assert found["fp32"].limits == (IdleDevice(idle_pct=30.0),)
    assert found["amp_bf16"].limits == ()
    assert workload.cautions == (LimitedBaseline(limit=IdleDevice(idle_pct=30.0)),), "it bears on every speedup"


def test_contaminated_runs_do_not_hide_a_short_step():
    found, _ = arms([run("fp32"), run("amp_bf16", step_ms=4.0), contaminated("amp_bf16", 1, step_ms=90.0)])
    (limit,) = found["amp_bf16"].limits
    assert limit.step_ms == 4.0


def test_of_contaminated_runs_only_launching_is_told():
    """Another's load stalls the loader, too: its waiting is not the arm's."""
    directory, record = contaminated("amp_bf16", step_ms=4.0)
    record.summary["perf/data_wait_ms"] = 6.0
    found, _ = arms([run("fp32"), (directory, record)])
    assert [limit.kind() for limit in found["amp_bf16"].limits] == ["small_step"]
