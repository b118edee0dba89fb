"""The ranks of a run and of an arm: the fullest, the slowest, and the one that the others wait for."""

import pytest
from synthetic_records import Entry, contaminated, failed, run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.rank_table import ranks_of_arm, ranks_of_run
from ampsweep.analysis.runs import Run
from ampsweep.record.parts import RankFigures

GIB = 2**30


def ranks(*peaks_gib: float, step_ms: tuple[float, ...] = (), waits: tuple[float, ...] = ()) -> list[RankFigures]:
    """A rank for each peak, each with a device of its own."""
    return [
        RankFigures(
            rank=number,
            host="node",
            device=f"cuda:{number}",
            device_name="a GPU",
            peak={"activations": 100 * number},
            peak_allocated_gib=peak,
            step_ms=step_ms[number] if step_ms else None,
            communication_ms=waits[number] if waits else None,
        )
        for number, peak in enumerate(peaks_gib)
    ]


def runs(*entries: Entry) -> list[Run]:
    return [Run(directory, record) for directory, record in entries]


def test_one_process_has_no_ranks():
    (only,) = runs(run("fp32"))
    assert ranks_of_run(only) is None
    assert ranks_of_arm([only]) is None


def test_the_fullest_and_the_slowest_rank_are_named():
    table = ranks_of_run(*runs(run("fp32", ranks=ranks(1.0, 1.5, 1.2, step_ms=(90.0, 91.0, 120.0)))))
    assert (table.fullest, table.slowest) == (1, 2)
    assert table.memory_spread_bytes == pytest.approx(0.5 * GIB)
    assert table.time_spread_ms == 30.0
    assert table.sentence == (
        "rank 1 is the fullest, with a peak of 1.50 GiB, 512 MiB more than the emptiest; rank 2 is the slowest, with "
        "120 ms a step, 30.0 ms more than the fastest"
    )
    assert [one.devices for one in table.rows] == [("cuda:0",), ("cuda:1",), ("cuda:2",)]
    assert table.rows[2].peak_by_category == {"activations": 200}


def test_the_rank_that_waits_least_is_the_one_waited_for():
    even = run("fp32", ranks=ranks(1.0, 1.0, 1.0, step_ms=(50.0,) * 3, waits=(20.0, 2.0, 21.0)))
    assert ranks_of_run(*runs(even)).waited_for == 1
    alike = run("fp32", ranks=ranks(1.0, 1.0, step_ms=(50.0,) * 2, waits=(20.0, 20.0)))
    assert ranks_of_run(*runs(alike)).waited_for is None


def test_what_one_rank_did_not_measure_has_no_spread():
    partly = ranks(1.0, 2.0)
    partly[1].peak_allocated_gib = None
    table = ranks_of_run(*runs(run("fp32", ranks=partly)))
    assert (table.fullest, table.memory_spread_bytes, table.slowest) == (0, None, None)


def test_an_arm_has_medians_and_times_of_clean_runs():
    arm = runs(
        *(run("fp32", seed, ranks=ranks(1.0 + seed, 1.0, step_ms=(10.0 * (1 + seed), 10.0))) for seed in range(3)),
        contaminated("fp32", 3, ranks=ranks(2.0, 1.0, step_ms=(1000.0, 1000.0))),
        failed("fp32", 4, "oom", "no memory", ranks=ranks(70.0, 70.0)),
    )
    table = ranks_of_arm(arm)
    assert table.num_runs == 4
    assert table.rows[0].peak_bytes == 2.0 * GIB
    assert table.rows[0].step_ms == 20.0


def test_ranks_on_mixed_devices_pair_with_none_of_one_kind():
    mixed = ranks(1.0, 1.0)
    mixed[1].device_name = "an older GPU"
    entries = [run("fp32", ranks=ranks(1.0, 1.0)), run("amp_bf16", ranks=mixed)]
    found = compare(entries, baseline="fp32", margin_pct=1.0)
    (note,) = found.notes
    assert (note.kind(), note.num_runs_of) == ("mixed_devices", {"a GPU and an older GPU": 1})
    (workload,) = found.workloads
    reason = workload.runs[1].not_paired
    assert reason.kind() == "nearest_run_differs"
    assert [(one.key, one.there, one.here) for one in reason.differences] == [
        ("devices_of_ranks", "not set", "a GPU, an older GPU")
    ]
