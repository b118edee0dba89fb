import pytest
from synthetic_records import arms, contaminated, failed, run, sweep, workload

from ampsweep.analysis.step_limits import IdleDevice, LimitedBaseline, SmallPeak, WaitForData


def on_gpu(arm, figures=(), is_compiled=False, **more):
    facts = {"device": "cuda:0", "device_name": "a GPU", "compile": is_compiled}
    entry = run(arm, facts=facts, **more)
    entry[1].summary |= dict(figures)
    return entry


def kinds(*entries):
    return [limit.kind() for limit in arms(entries)["amp_bf16"].limits]


def test_an_arm_may_be_launch_bound_where_the_baseline_is_not():
    found = workload(
        [on_gpu("fp32", step_ms=2.7, num_operators=66), on_gpu("amp_bf16", step_ms=0.76, num_operators=95)]
    )
    fp32, bf16 = found.arms
    (limit,) = bf16.limits
    assert (limit.kind(), limit.num_operators, limit.us_per_operator) == ("small_step", 95, pytest.approx(8.0))
    assert (fp32.limits, fp32.num_operators, fp32.us_per_operator) == ((), 66, pytest.approx(40.9, abs=0.1))
    assert found.cautions == (), "the workload as a whole is not too small"


@pytest.mark.parametrize(
    ("device", "us_each", "is_small"),
    [("cpu", 49, True), ("cpu", 51, False), ("cuda:0", 19, True), ("cuda:0", 21, False)],
)
def test_the_threshold_of_an_operator_is_that_of_the_device(device, us_each, is_small):
    of = {"num_operators": 1000, "facts": {"device": device}}
    entries = sweep("fp32", [float(us_each)] * 3, **of) + sweep("amp_bf16", [500.0] * 3, **of)
    assert bool(workload(entries).cautions) == is_small
    swapped = sweep("fp32", [500.0] * 3, **of) + sweep("amp_bf16", [float(us_each)] * 3, **of)
    assert kinds(*swapped) == ["small_step"] * is_small


def test_the_measured_time_of_launching_decides_where_it_is():
    for of, is_limited in (
        ({"step_ms": 0.76, "num_operators": 95, "figures": {"perf/launch_ms": 0.74}}, True),
        ({"step_ms": 0.76, "num_operators": 95, "figures": {"perf/launch_ms": 0.5}}, False),
        ({"step_ms": 500.0, "figures": {"perf/launch_ms": 480.0, "perf/device_lag_ms": 1.0}}, True),
        ({"step_ms": 500.0, "figures": {"perf/launch_ms": 480.0, "perf/device_lag_ms": 40.0}}, False),
        ({"step_ms": 0.5, "is_compiled": True}, False),
        ({"step_ms": 1.0, "is_compiled": True, "figures": {"perf/launch_ms": 0.95}}, True),
    ):
        found = arms([on_gpu("fp32", step_ms=700.0), on_gpu("amp_bf16", **of)])["amp_bf16"]
        launch_ms = of.get("figures", {}).get("perf/launch_ms")
        assert [limit.launch_ms for limit in found.limits] == [launch_ms] * is_limited
        assert (found.us_per_operator is None) == of.get("is_compiled", False)


def test_waiting_for_data_and_an_idle_device_limit_a_step():
    for figures, limit in (
        ({"perf/data_wait_ms": 30.0, "device/utilization_pct": 99.0}, None),
        ({"perf/data_wait_ms": 30.0, "device/utilization_pct": 60.0}, WaitForData(wait_ms=30.0, step_ms=100.0)),
        ({"perf/data_wait_ms": 30.0}, WaitForData(wait_ms=30.0, step_ms=100.0)),
        ({"perf/data_wait_ms": 9.0}, None),
        ({"device/utilization_pct": 70.0}, IdleDevice(idle_pct=30.0)),
        ({"device/utilization_pct": 99.0}, None),
    ):
        found = workload([on_gpu("fp32", figures)])
        assert found.arms[0].limits == (() if limit is None else (limit,))
        assert found.cautions == (() if limit is None else (LimitedBaseline(limit=limit),))


def test_of_contaminated_runs_launching_alone_is_a_limit():
    """Another's load stalls the loader, too: its waiting is not the arm's."""
    found = arms([run("fp32"), run("amp_bf16", step_ms=4.0), contaminated("amp_bf16", 1, step_ms=90.0)])
    assert [limit.step_ms for limit in found["amp_bf16"].limits] == [4.0]
    directory, record = contaminated("amp_bf16", step_ms=4.0)
    record.summary["perf/data_wait_ms"] = 6.0
    assert kinds(run("fp32"), (directory, record)) == ["small_step"]


def test_cautions_claim_only_what_the_records_show():
    for of_baseline, expected in (
        ({"peak_mib": 63.0}, (SmallPeak(peak_bytes=63 * 2**20),)),
        ({"peak_mib": 64.0}, ()),
        ({"peak_mib": None}, ()),
        ({"step_ms": 1.0, "num_operators": None}, ()),
        ({"step_ms": 1.0, "facts": {"compile": True}}, ()),
    ):
        assert workload([run("fp32", **of_baseline), run("amp_bf16")]).cautions == expected
        lost = failed("fp32", 0, "oom", num_operators=430, step_ms=1.0)
        assert workload([lost, run("amp_bf16")]).cautions == ()
