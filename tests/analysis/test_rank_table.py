import pytest
from synthetic_records import LOST_BITS, contaminated, disproved, failed, run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.rank_table import ranks_of_arm, ranks_of_run
from ampsweep.analysis.runs import Run
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.parallel.base import Parallel
from ampsweep.record.sections import RankFigures
from ampsweep.recorder.rank_figures import add_rank_figures

GIB = 2**30


def ranks(*peaks_gib, step_ms=None, waits=None):
    """A rank for each peak, each with a device of its own."""
    found = []
    for number, peak in enumerate(peaks_gib):
        figures = RankFigures(rank=number, host="node", device=f"cuda:{number}", device_name="a GPU")
        figures.peak, figures.peak_allocated_gib = {"activations": 100 * number}, peak
        figures.step_ms, figures.communication_ms = step_ms and step_ms[number], waits and waits[number]
        found.append(figures)
    return found


def table_of(*args, **more):
    return ranks_of_run(Run(*run("fp32", ranks=ranks(*args, **more)[::-1])))


def test_the_fullest_slowest_and_least_waiting_rank_are_named():
    table = table_of(1.0, 1.5, 1.2, step_ms=(90.0, 91.0, 120.0))
    assert (table.fullest, table.slowest) == (1, 2)
    assert (table.memory_spread_bytes, table.time_spread_ms) == (pytest.approx(0.5 * GIB), 30.0)
    assert table.sentence == (
        "rank 1 is the fullest, with a peak of 1.50 GiB, 512 MiB more than the emptiest; rank 2 is the slowest, with "
        "120 ms a step, 30.0 ms more than the fastest"
    )
    assert [rank.devices for rank in table.rows] == [("cuda:0",), ("cuda:1",), ("cuda:2",)]
    assert table.rows[2].peak_by_category == {"activations": 200}
    table = table_of(1.0, None)
    assert (table.fullest, table.memory_spread_bytes, table.slowest) == (0, None, None), "not all are known"
    assert table_of(1.0, 1.0, 1.0, step_ms=(50.0,) * 3, waits=(20.0, 2.0, 21.0)).waited_for == 1
    assert table_of(1.0, 1.0, step_ms=(50.0,) * 2, waits=(20.0, 20.0)).waited_for is None


def test_an_arm_has_medians_and_times_of_clean_runs():
    entries = [
        *(run("fp32", seed, ranks=ranks(1.0 + seed, 1.0, step_ms=(10.0 * (1 + seed), 10.0))) for seed in range(3)),
        contaminated("fp32", 3, ranks=ranks(2.0, 1.0, step_ms=(1000.0, 1000.0))),
        failed("fp32", 4, "oom", "no memory", ranks=ranks(70.0, 70.0)),
    ]
    table = ranks_of_arm([Run(*entry) for entry in entries])
    assert (table.num_runs, table.rows[0].peak_bytes, table.rows[0].step_ms) == (4, 2.0 * GIB, 20.0)
    only = Run(*run("fp32"))
    assert ranks_of_run(only) is ranks_of_arm([only]) is None, "a process alone has no ranks"


def test_ranks_on_mixed_devices_pair_with_none_of_one_kind():
    mixed = ranks(1.0, 1.0)
    mixed[1].device_name = "an older GPU"
    found = compare([run("fp32", ranks=ranks(1.0, 1.0)), run("amp_bf16", ranks=mixed)], baseline="fp32", margin_pct=1.0)
    (note,) = found.notes
    assert (note.kind(), note.num_runs_of) == ("mixed_devices", {"a GPU and an older GPU": 1})
    (difference,) = found.workloads[0].runs[1].not_paired.differences
    assert (difference.key, difference.here) == ("devices_of_ranks", "a GPU, an older GPU")


class Ranks(Parallel):
    """Rank 0 of several, whose others have these records."""

    def __init__(self, others):
        self.others, self.world_size = others, 1 + len(others)

    def gather(self, value):
        return [value, *self.others]


def test_a_rank_that_contradicts_the_mode_disproves_the_run():
    for place in (0, 2):
        records = [(disproved if rank == place else run)("fp32")[1] for rank in range(3)]
        add_rank_figures(records[0], PRECISION_MODES["fp32"], Ranks(records[1:]), num_steps=0)
        assert Run("there", records[0]).contradictions == (LOST_BITS,)
    first, other = (run("fp32", num_operators=number)[1] for number in (400, 300))
    add_rank_figures(first, PRECISION_MODES["fp32"], Ranks([other]), num_steps=0)
    assert (first.proof.num_operators, Run("there", first).contradictions) == (400, ())
