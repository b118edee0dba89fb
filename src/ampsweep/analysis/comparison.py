"""The comparison of runs: every arm with the baseline, workload by workload."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Final, Literal

from ampsweep.analysis.arms import ArmComparison, cautions, summarise_arm
from ampsweep.analysis.deciding_command import Started
from ampsweep.analysis.figure_keys import FigureKeys
from ampsweep.analysis.foreign_runs import prepare
from ampsweep.analysis.gpu_prediction import GpuPrediction, predicted_on_gpu
from ampsweep.analysis.pairing import Pair, pair_runs
from ampsweep.analysis.resumed_runs import AllSeries, ResumedArm, resumed_arms
from ampsweep.analysis.run_findings import NotPaired, RunEntry, RunFinding, cannot_run, disturbed, merged, run_entry
from ampsweep.analysis.runs import Run, Scalar
from ampsweep.analysis.search_comparison import SearchComparison, compare_search
from ampsweep.analysis.sequential import CONFIDENCE_OF_LOOKS
from ampsweep.analysis.statistics import CONFIDENCE
from ampsweep.analysis.swept_series import Series, swept_series
from ampsweep.analysis.time_to_loss import Curves
from ampsweep.analysis.verdict import Verdict, reach_verdict
from ampsweep.analysis.workloads import Workload, group_workloads
from ampsweep.finding import Finding, Severity
from ampsweep.metrics import goal_of
from ampsweep.records import RunRecord
from ampsweep.text import milliseconds, not_vouched_for, num_bytes, with_error


@dataclass(frozen=True, kw_only=True)
class WorkloadComparison:
    title: str
    facts: Mapping[str, Scalar]
    arms: tuple[ArmComparison, ...]
    verdict: Verdict
    cautions: tuple[Finding, ...]  # why figures may not carry over to larger workloads
    runs: tuple[RunEntry, ...]
    resumed: tuple[ResumedArm, ...]
    on_gpu: GpuPrediction | None  # of runs without a GPU

    @property
    def keys(self) -> FigureKeys:
        return self.arms[0].keys

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(arm.arm for arm in self.arms)

    @property
    def predicted(self) -> str | None:
        """'peak memory of fp32 7.17 MiB (+0.11%), tf32 9.00 GiB', the operators not vouched for, and steps' times."""
        peaks = [
            f"{arm.arm} {with_error(num_bytes(arm.predicted_memory_bytes), arm.prediction_error_pct)}"
            for arm in self.arms
            if arm.predicted_memory_bytes is not None
        ]
        times = [
            f"{arm.arm} {with_error(milliseconds(arm.predicted_step_ms), arm.step_error_pct, 0)}"
            for arm in self.arms
            if arm.predicted_step_ms is not None
        ]
        named = not_vouched_for(name for arm in self.arms for name in arm.unvouched)
        said = [f"peak memory of {', '.join(peaks)}{named}"] if peaks else []
        said += [f"step time of {', '.join(times)}"] if times else []
        return "; ".join(said) or None


_GRAVEST: Final[tuple[Severity, ...]] = ("fault", "warning", "note")

FileProblemKind = Literal["not readable", "no history", "damaged history", "not finite"]

_CONSEQUENCES: Final[dict[FileProblemKind, str]] = {
    "not readable": "left out",
    "no history": "no curves, no time to a loss",
    "damaged history": "its curves are of what is left, no time to a loss",
    "not finite": "gaps in its curves",
}


class FileProblem(Finding):
    """A file of a run that could not be read in full; `reason` is a clause that follows the path."""

    severity = "warning"
    template = "{path} {reason}"
    path: str
    name: FileProblemKind
    reason: str

    @property
    def why(self) -> str:
        return self.sentence

    @property
    def consequence(self) -> str:
        return _CONSEQUENCES[self.name]


@dataclass(frozen=True)
class Problem:
    """Runs of an arm and workload with the same problem; a file may belong to no known run."""

    finding: RunFinding | FileProblem
    arm: str | None = None
    seeds: tuple[int, ...] = ()
    compared: str | None = None  # the title of the workload or search


class GivenTwice(Finding):
    template = "{num_runs:count run} given more than once, counted once"
    num_runs: int


class Predicted(Finding):
    template = "{num_runs:count predicted run} left out: only measured runs are compared"
    num_runs: int


class SeveralMachines(Finding):
    severity = "warning"
    template = "the runs trained on {num_runs_of:size} devices, whose speed may differ: {num_runs_of:runs}"
    num_runs_of: dict[str, int]  # by host and device, of all ranks of a run


class MixedDevices(Finding):
    severity = "warning"
    template = "in some runs the ranks had different devices, and the slowest and smallest decide: {num_runs_of:runs}"
    num_runs_of: dict[str, int]  # by the devices of all ranks of a run


class SeveralSources(Finding):
    template = (
        "the runs were made by {num_runs_of:size} states of ampsweep's source, which keep no runs of one version from "
        "pairing: {num_runs_of:runs}"
    )
    num_runs_of: dict[str, int]  # by version and digest of the source


class OtherMargin(Finding):
    severity = "warning"
    template = "the margin of {margin_pct:g}% was chosen after the runs, which recorded one of {recorded_margin_pct:g}%"
    margin_pct: float
    recorded_margin_pct: float


class LeftOut(Finding):
    """Runs of a W&B project that cannot be compared."""

    severity = "warning"
    template = "left out: {names:few}: {reason}"
    names: tuple[str, ...]
    reason: str  # a clause about one run: `has no seed in its config`


class MetricNotLogged(Finding):
    severity = "warning"
    template = "no run has logged {metric}, which was to decide parity; logged were {logged:few}{remedy}"
    metric: str
    logged: tuple[str, ...]

    @property
    def remedy(self) -> str:
        known = next((key for key in self.logged if goal_of(key) is not None), None)
        return "" if known is None else f"; choose one of them, such as --metric {known}"


class ContaminationUnknown(Finding):
    template = "whether anything else slowed {num_runs:count run} down is unknown: {cause}"
    num_runs: int
    cause: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    baseline: str
    margin_pct: float
    workloads: tuple[WorkloadComparison, ...]
    searches: tuple[SearchComparison, ...]
    notes: tuple[Finding, ...]
    max_pairs: int | None = None  # planned pairs of an arm, with a look after each; None: one test of all pairs
    memory_gib: float | None = None  # limit on the peak of the fullest rank; None: the memory of the device
    series: tuple[Series, ...] = ()
    file_problems: tuple[FileProblem, ...] = ()
    keys: FigureKeys = field(default_factory=FigureKeys)

    @property
    def compared(self) -> tuple[WorkloadComparison | SearchComparison, ...]:
        return (*self.workloads, *self.searches)

    @property
    def problems(self) -> list[Problem]:
        """Everything that keeps a run's figures from counting in full, the gravest first; disturbances are a note, and
        the arms of a workload that cannot run are named beside its verdict."""
        of_files: dict[str, list[FileProblem]] = defaultdict(list)
        for file in self.file_problems:
            of_files[PurePath(file.path).parent.as_posix()].append(file)
        found = []
        for compared in self.compared:
            for arm in dict.fromkeys(entry.arm for entry in compared.runs):
                own = [entry for entry in compared.runs if entry.arm == arm]
                of_runs = merged(finding for entry in own for finding in entry.findings if finding.consequence)
                if isinstance(compared, WorkloadComparison) and cannot_run(entry.status for entry in own):
                    of_runs = ()
                found += [Problem(finding, arm, finding.seeds, compared.title) for finding in of_runs]
                for entry in own:
                    files = of_files.pop(entry.directory, ())
                    found += [Problem(file, arm, (entry.seed,), compared.title) for file in files]
        found += [Problem(file) for of_directory in of_files.values() for file in of_directory]
        return sorted(found, key=lambda problem: _GRAVEST.index(problem.finding.severity))

    def relative_to(self, directory: Path) -> "Comparison":
        """A copy with paths relative to `directory`, so that the tree can be moved."""
        base = directory.resolve()

        def moved(runs: Iterable[RunEntry]) -> tuple[RunEntry, ...]:
            return tuple(replace(run, directory=_path_from(base, run.directory)) for run in runs)

        return replace(
            self,
            workloads=tuple(replace(workload, runs=moved(workload.runs)) for workload in self.workloads),
            searches=tuple(replace(search, runs=moved(search.runs)) for search in self.searches),
            file_problems=tuple(replace(file, path=_path_from(base, file.path)) for file in self.file_problems),
        )


def compare(
    records: Sequence[tuple[Path, RunRecord]],
    *,
    baseline: str,
    margin_pct: float,
    max_pairs: int | None = None,
    memory_gib: float | None = None,
    keys: FigureKeys | None = None,
    curves: Curves | None = None,
    series: AllSeries | None = None,
    file_problems: Sequence[FileProblem] = (),
    notes: Sequence[Finding] = (),
    started: Started = lambda directory, of_multirun: (),
) -> Comparison:
    """Compare every arm with the arm `baseline` within each workload.

    Args:
        records: run directories with their records; duplicates count once, predicted runs not at all.
        margin_pct: loss gap, in percent of the baseline's loss, that counts as none; a ValueError unless above 0.
        max_pairs: pairs at which an arm's test of parity ends, with a look after each. None: one test of all pairs.
        memory_gib: the memory that a recommended arm must fit into; None: the memory of the device.
        keys: the metric that decides parity (`chosen_metric`). None: the validation loss.
        curves: `loss_curves` by run directory.
        series: `RESUMED_KEYS` by run directory.
        notes: more findings, such as on runs that are not among `records`.
        started: see `Started`; for the command that would decide an open verdict.
    """
    if not margin_pct > 0:
        raise ValueError(f"report.margin_pct is {margin_pct}; it must be above 0")
    unique: dict[Path, Run] = {}
    for directory, record in records:
        unique.setdefault(directory.resolve(), Run(directory, record))
    keys = keys or FigureKeys()
    measured, own_notes = prepare([run for run in unique.values() if run.record.kind == "measured"], keys)
    searches = [run for run in measured if run.record.batch_search is not None]
    runs = [run for run in measured if run.record.batch_search is None]
    by_id = {run.record.run_id: run for run in runs}
    every_pair, left = pair_runs(runs, baseline)
    pairs_of: dict[str, list[Pair]] = defaultdict(list)
    for pair in every_pair:
        pairs_of[pair.pair_key].append(pair)
    unpaired = {run.directory: reason for run, reason in left}

    def of_workload(workload: Workload) -> WorkloadComparison:
        pairs = [pair for key in dict.fromkeys(run.pair_key for run in workload.runs) for pair in pairs_of.get(key, ())]
        runs_of = workload.of_arms(baseline)
        of_baseline = runs_of.get(baseline, [])
        entries = {run.directory: run_entry(run, unpaired.get(run.directory)) for run in workload.runs}

        def findings(runs: Sequence[Run]) -> Iterator[RunFinding]:
            every = (finding for run in runs for finding in entries[run.directory].findings)
            # The verdict already says that there is no baseline to pair with.
            return (finding for finding in every if of_baseline or not isinstance(finding, NotPaired))

        confidence = CONFIDENCE if max_pairs is None else CONFIDENCE_OF_LOOKS
        arms = tuple(
            summarise_arm(arm, own, of_baseline, pairs, findings(own), confidence, is_baseline=arm == baseline)
            for arm, own in runs_of.items()
        )
        return WorkloadComparison(
            title=workload.title,
            facts=workload.facts,
            arms=arms,
            verdict=reach_verdict(
                arms,
                runs_of,
                pairs,
                baseline=baseline,
                margin_pct=margin_pct,
                max_pairs=max_pairs,
                memory_gib=memory_gib,
                curves=curves or {},
                started=started,
            ),
            cautions=tuple(cautions(arms)),
            runs=tuple(entries.values()),
            resumed=resumed_arms(workload.runs, by_id, series or {}, baseline=baseline),
            on_gpu=predicted_on_gpu(runs_of, baseline),
        )

    workloads, num_twice = group_workloads(runs), len(records) - len(unique)
    found = _notes(num_twice, len(unique) - len(measured), measured, every_pair, margin_pct)
    return Comparison(
        baseline=baseline,
        margin_pct=margin_pct,
        max_pairs=max_pairs,
        memory_gib=memory_gib,
        workloads=tuple(map(of_workload, workloads)),
        searches=tuple(compare_search(search, baseline) for search in group_workloads(searches)),
        notes=(*notes, *own_notes, *found),
        keys=measured[0].keys if len({run.keys for run in measured}) == 1 else keys,
        series=swept_series(workloads),
        file_problems=tuple(file_problems),
    )


def _path_from(base: Path, path: str) -> str:
    """`path` relative to the resolved `base`, or absolute if elsewhere; a link at its end is not followed."""
    absolute = Path(path).parent.resolve() / Path(path).name
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else absolute.as_posix()


def _notes(
    num_duplicates: int, num_predicted: int, runs: Sequence[Run], pairs: Sequence[Pair], margin_pct: float
) -> Iterator[Finding]:
    if num_duplicates:
        yield GivenTwice(num_runs=num_duplicates)
    if num_predicted:
        yield Predicted(num_runs=num_predicted)
    both_sides = [[*pair.baseline_runs, *pair.arm_runs] for pair in pairs]
    apart = [runs for runs in both_sides if len({run.trained_on for run in runs}) > 1]
    if apart:
        trained_on = {run.directory: run.trained_on for runs in apart for run in runs}
        yield SeveralMachines(num_runs_of=dict(sorted(Counter(trained_on.values()).items())))
    mixed = Counter(" and ".join(run.devices_of_ranks) for run in runs if len(run.devices_of_ranks) > 1)
    if mixed:
        yield MixedDevices(num_runs_of=dict(mixed))
    sources = Counter(code for run in runs if (code := run.record.environment.get("code_version")) is not None)
    if len(sources) > 1:
        yield SeveralSources(num_runs_of=dict(sources))
    yield from notes_on_figures(runs, margin_pct)


def notes_on_figures(runs: Sequence[Run], margin_pct: float) -> Iterator[Finding]:
    """Yield that the margin is not the recorded one, and how many runs' contamination is unknown."""
    recorded = {run.record.config.get("report", {}).get("margin_pct", margin_pct) for run in runs}
    for other in sorted(recorded - {margin_pct}):
        yield OtherMargin(margin_pct=margin_pct, recorded_margin_pct=other)
    if (seen := disturbed(runs)) is not None:
        yield seen
    unknown = Counter(cause for run in runs if run.measured and (cause := run.unknown_contamination) is not None)
    for cause, count in unknown.items():
        yield ContaminationUnknown(num_runs=count, cause=cause)
