"""The ranks of a run and of an arm (`golden/ranks.md`), and what ranks do to a run's proof and its pairs."""

from types import SimpleNamespace

from synthetic_records import LOST_BITS, contaminated, disproved, document, failed, figures, run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.rank_table import ranks_of_arm, ranks_of_run
from ampsweep.analysis.runs import Run
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.recorder.rank_figures import add_rank_figures
from ampsweep.records.sections import RankFigures


def ranks(*peaks_gib, step_ms=None, waits=None):
    found = []
    for number, peak in enumerate(peaks_gib):
        of = RankFigures(rank=number, host="node", device=f"cuda:{number}", device_name="a GPU")
        of.peak, of.peak_allocated_gib = {"activations": 100 * number}, peak
        of.step_ms, of.communication_ms = step_ms and step_ms[number], waits and waits[number]
        found.append(of)
    return {"ranks": found[::-1]}


ARM = [
    *(run("fp32", seed, **ranks(1.0 + seed, 1.0, step_ms=(10.0 * (1 + seed), 10.0))) for seed in range(3)),
    contaminated("fp32", 3, **ranks(2.0, 1.0, step_ms=(1000.0, 1000.0))),
    failed("fp32", 4, "oom", "no memory", **ranks(70.0, 70.0)),
]
TABLES = {
    "fullest and slowest": ranks_of_run(Run(*run("fp32", **ranks(1.0, 1.5, 1.2, step_ms=(90.0, 91.0, 120.0))))),
    "not all are known": ranks_of_run(Run(*run("fp32", **ranks(1.0, None)))),
    "waited for": ranks_of_run(Run(*run("fp32", **ranks(1.0, 1.0, 1.0, step_ms=(50.0,) * 3, waits=(20.0, 2.0, 21.0))))),
    "all wait alike": ranks_of_run(Run(*run("fp32", **ranks(1.0, 1.0, step_ms=(50.0,) * 2, waits=(20.0, 20.0))))),
    "medians of an arm, and times of its clean runs": ranks_of_arm([Run(*entry) for entry in ARM]),
}


def test_ranks_side_by_side(golden):
    only = Run(*run("fp32"))
    assert ranks_of_run(only) is ranks_of_arm([only]) is None, "a process alone has no ranks"
    golden("ranks.md", document(tables={name: f"{of.sentence} ({figures(of)})" for name, of in TABLES.items()}))


def test_ranks_on_mixed_devices_pair_with_none_of_one_kind():
    mixed = ranks(1.0, 1.0)
    mixed["ranks"][0].device_name = "an older GPU"
    found = compare([run("fp32", **ranks(1.0, 1.0)), run("amp_bf16", **mixed)], baseline="fp32", margin_pct=1.0)
    (note,) = found.notes
    assert note.sentence.endswith(", and the slowest and smallest decide: an older GPU and a GPU (1 run)")
    (difference,) = found.workloads[0].runs[1].not_paired.differences
    assert (difference.key, difference.here) == ("devices_of_ranks", "an older GPU, a GPU")


def test_a_rank_that_contradicts_the_mode_disproves_the_run():
    def exchange(record, *others):
        parallel = SimpleNamespace(rank=0, world_size=1 + len(others), gather=lambda value: [value, *others])
        add_rank_figures(record, PRECISION_MODES["fp32"], parallel, num_steps=0)
        return record, Run("there", record).contradictions

    for place in (0, 2):
        assert exchange(*((disproved if rank == place else run)("fp32")[1] for rank in range(3)))[1] == (LOST_BITS,)
    first, found = exchange(*(run("fp32", num_operators=number)[1] for number in (400, 300)))
    assert (first.proof.num_operators, found) == (400, ())
