"""The comparison of a set of runs: every arm against the baseline, workload by workload."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from ampsweep.analysis.arms import ArmComparison, summarise_arm
from ampsweep.analysis.goal import Goal
from ampsweep.analysis.pairing import Pair, Unpaired, pair_runs
from ampsweep.analysis.run_entry import RunEntry, path_from, run_entry
from ampsweep.analysis.runs import Run, Scalar
from ampsweep.analysis.seam_comparison import AllSeries, SeamComparison, compare_seams
from ampsweep.analysis.search_comparison import SearchComparison, compare_search
from ampsweep.analysis.size_series import SizeSeries, size_series
from ampsweep.analysis.time_to_loss import Curves
from ampsweep.analysis.workload_size import Caution, cautions
from ampsweep.analysis.workload_verdict import Verdict, reach_verdict
from ampsweep.analysis.workloads import Workload, group_workloads
from ampsweep.config.modes import report_order
from ampsweep.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class WorkloadComparison:
    """All arms of one workload, the baseline first."""

    title: str
    facts: Mapping[str, Scalar]
    arms: tuple[ArmComparison, ...]
    verdict: Verdict
    cautions: tuple[Caution, ...]
    """Signs, in the baseline's runs, that figures do not carry over or tell little of arithmetic."""
    runs: tuple[RunEntry, ...]


FileProblemKind = Literal["not readable", "no history", "changed history", "damaged history", "not finite"]


@dataclass(frozen=True, kw_only=True)
class FileProblem:
    """A file of a run that could not be read, or not in full. `reason`: what its reader says, to follow the path."""

    path: str
    kind: FileProblemKind
    reason: str


NoteKind = Literal[
    "given twice",
    "predicted",
    "several devices",
    "several world sizes",
    "mixed devices",
    "other margin",
    "contamination unknown",
]


@dataclass(frozen=True, kw_only=True)
class ComparisonNote:
    """A note on all runs of a comparison, with the facts of its kind."""

    kind: NoteKind
    num_runs: int = 0
    num_runs_of: tuple[tuple[str, int], ...] = ()
    """(device, number of its runs); for mixed devices those of all ranks of a run."""
    arms_of: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """(number of ranks, the arms that ran on as many)."""
    margin_pct: float | None = None
    recorded_margin_pct: float | None = None
    cause: str | None = None
    """Text from the records."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of a set of runs: all figures of a report."""

    baseline: str
    margin_pct: float
    workloads: tuple[WorkloadComparison, ...]
    searches: tuple[SearchComparison, ...]
    """Searches for the largest batch that trains: each arm has a batch of its own, and little else is compared."""
    seams: tuple[SeamComparison, ...]
    """Runs that went on from a checkpoint of another precision: each is held against the run that it went on from."""
    notes: tuple[ComparisonNote, ...]
    goal: Goal = field(default_factory=Goal)
    """The goal that arms are recommended for."""
    series: tuple[SizeSeries, ...] = ()
    """Workloads that differ in one size of the model or its batches."""
    file_problems: tuple[FileProblem, ...] = ()

    @property
    def compared(self) -> tuple[WorkloadComparison | SearchComparison | SeamComparison, ...]:
        """Workloads, searches and seams."""
        return (*self.workloads, *self.searches, *self.seams)

    def relative_to(self, directory: Path) -> "Comparison":
        """Copy the comparison with run directories relative to `directory`, so that the tree can be moved."""
        base = directory.resolve()
        return replace(
            self,
            workloads=tuple(_seen_from(base, one) for one in self.workloads),
            searches=tuple(_seen_from(base, one) for one in self.searches),
            seams=tuple(_seen_from(base, one) for one in self.seams),
            file_problems=tuple(replace(one, path=path_from(base, one.path)) for one in self.file_problems),
        )


def compare(
    records: Sequence[tuple[Path, RunRecord]],
    *,
    baseline: str,
    margin_pct: float,
    goal: Goal | None = None,
    curves: Curves | None = None,
    series: AllSeries | None = None,
    file_problems: Sequence[FileProblem] = (),
) -> Comparison:
    """Compare every arm with the arm `baseline`, within each workload.

    Args:
        records: run directories with their records, as `record.find_records` gives them. A directory given twice counts
            once; predicted runs are left out. Both are noted.
        baseline: label of the arm the others are compared with.
        margin_pct: loss gap, in percent of the baseline's loss, that each gap is held against.
        goal: the goal that an arm is recommended for; None: least time, in whatever memory.
        curves: run directory, as in `records`, -> `loss_curves.loss_curves` of its history; of a run without them, or
            without any at all, no time to a loss is known.
        series: run directory -> metric key -> values of its history, of at least `SEAM_KEYS`; without them no jump at a
            seam is known.
        file_problems: files of the runs that could not be read, or not in full.

    Raises:
        ValueError: `margin_pct` is not positive.
    """
    if not margin_pct > 0:
        raise ValueError(f"report.margin_pct is {margin_pct}; it must be above 0")
    unique: dict[Path, Run] = {}
    for directory, record in records:
        unique.setdefault(directory.resolve(), Run(directory, record))
    measured = [run for run in unique.values() if run.record.kind == "measured"]
    searches = [run for run in measured if run.record.batch_search is not None]
    resumed = [run for run in measured if run.record.identity.saved_in is not None]
    runs = [run for run in measured if run.record.batch_search is None and run.record.identity.saved_in is None]
    pairing = pair_runs(runs, baseline)
    unpaired = {run.directory: reason for run, reason in pairing.unpaired}
    workloads = group_workloads(runs)
    return Comparison(
        baseline=baseline,
        margin_pct=margin_pct,
        goal=goal or Goal(),
        workloads=tuple(
            _compare_workload(
                workload, pairing.of(workload.runs), unpaired, baseline, margin_pct, goal or Goal(), curves or {}
            )
            for workload in workloads
        ),
        searches=tuple(compare_search(one, baseline, arm_rank) for one in group_workloads(searches)),
        seams=tuple(
            compare_seams(one, runs, series or {}, baseline=baseline, margin_pct=margin_pct, rank=arm_rank)
            for one in group_workloads(resumed)
        ),
        notes=tuple(_notes(len(records) - len(unique), len(unique) - len(measured), measured, margin_pct)),
        series=size_series(workloads, pairing.pairs, baseline),
        file_problems=tuple(file_problems),
    )


def _compare_workload(
    workload: Workload,
    pairs: Sequence[Pair],
    unpaired: Mapping[Path, Unpaired],
    baseline: str,
    margin_pct: float,
    goal: Goal,
    curves: Curves,
) -> WorkloadComparison:
    baseline_runs = [run for run in workload.runs if run.arm == baseline]
    arms = tuple(
        summarise_arm(
            arm,
            [run for run in workload.runs if run.arm == arm],
            baseline_runs,
            pairs,
            unpaired,
        )
        for arm in sorted({run.arm for run in workload.runs}, key=lambda arm: arm_rank(arm, baseline))
    )
    verdict = reach_verdict(
        arms, workload.runs, pairs, baseline=baseline, margin_pct=margin_pct, goal=goal, curves=curves
    )
    return WorkloadComparison(
        title=workload.title,
        facts=workload.facts,
        arms=arms,
        verdict=verdict,
        cautions=cautions(baseline_runs),
        runs=tuple(run_entry(run, unpaired.get(run.directory)) for run in workload.runs),
    )


_Compared = TypeVar("_Compared", WorkloadComparison, SearchComparison, SeamComparison)


def _seen_from(base: Path, one: _Compared) -> _Compared:
    return replace(one, runs=tuple(run.relative_to(base) for run in one.runs))


def arm_rank(arm: str, baseline: str) -> tuple[bool, int, str]:
    """Sort key of arms: the baseline, then the modes in their order, then the rest by name."""
    return arm != baseline, *report_order(arm)


def _notes(num_duplicates: int, num_predicted: int, runs: Sequence[Run], margin_pct: float) -> Iterator[ComparisonNote]:
    if num_duplicates:
        yield ComparisonNote(kind="given twice", num_runs=num_duplicates)
    if num_predicted:
        yield ComparisonNote(kind="predicted", num_runs=num_predicted)
    devices = Counter(run.record.identity.device_name for run in runs if run.record.identity.device_name is not None)
    if len(devices) > 1:
        yield ComparisonNote(kind="several devices", num_runs_of=tuple(devices.items()))
    yield from _notes_on_ranks(runs)
    recorded = {run.record.config.get("report", {}).get("margin_pct", margin_pct) for run in runs}
    for other in sorted(recorded - {margin_pct}):
        yield ComparisonNote(kind="other margin", margin_pct=margin_pct, recorded_margin_pct=other)
    unknown = Counter(run.unknown_contamination for run in runs if run.measured)
    for cause, count in unknown.items():
        if cause is not None:
            yield ComparisonNote(kind="contamination unknown", num_runs=count, cause=cause)


def _notes_on_ranks(runs: Sequence[Run]) -> Iterator[ComparisonNote]:
    """Arms that lack partners because they ran on other numbers of ranks, and runs whose ranks are not alike."""
    arms: dict[int, set[str]] = defaultdict(set)
    for run in runs:
        arms[run.record.identity.world_size].add(run.arm)
    if len({frozenset(found) for found in arms.values()}) > 1:
        of = tuple((size, tuple(sorted(found, key=report_order))) for size, found in sorted(arms.items()))
        yield ComparisonNote(kind="several world sizes", arms_of=of)
    mixed = Counter(" and ".join(run.devices_of_ranks) for run in runs if len(run.devices_of_ranks) > 1)
    if mixed:
        yield ComparisonNote(kind="mixed devices", num_runs_of=tuple(mixed.items()))
