"""The comparison of a set of runs: every arm against the baseline, workload by workload."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

from ampsweep.analysis.arms import ArmComparison, summarise_arm
from ampsweep.analysis.conclusion import Conclusion, conclude
from ampsweep.analysis.pairs import Pair, pair_runs
from ampsweep.analysis.quantities import first_line, plural
from ampsweep.analysis.runs import Run, Scalar
from ampsweep.analysis.time_to_loss import Curves
from ampsweep.analysis.verdict import Verdict, reach_verdict
from ampsweep.analysis.workload_size import size_cautions
from ampsweep.analysis.workloads import Workload, group_workloads
from ampsweep.record import RunRecord

SCHEMA: Final = 2

MODE_ORDER: Final = ("fp32", "tf32", "amp_bf16", "amp_fp16", "pure_bf16", "pure_fp16")
"""Precision modes in the order tables show them; arms of a changed mode follow it, unknown ones come last."""


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run in the list of runs. `status` tells `cut short` and `disproved` from `completed`."""

    directory: str
    run_id: str
    arm: str
    seed: int
    status: str
    error: str | None
    not_paired: str | None
    """Why this run is in no pair; None for one that is."""
    contaminated: str | None
    """Why its speed does not count; None where it does, or where there are no figures to count."""
    tracked_at: str | None
    """The W&B page of the run, or W&B's local directory of one logged offline."""


@dataclass(frozen=True, kw_only=True)
class WorkloadComparison:
    """All arms of one workload, the baseline first."""

    title: str
    facts: Mapping[str, Scalar]
    arms: tuple[ArmComparison, ...]
    verdict: Verdict
    conclusion: Conclusion
    runs: tuple[RunEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything a report says. `dataclasses.asdict` of it is strict JSON: strings, finite numbers, None."""

    schema: int
    baseline: str
    margin_pct: float
    workloads: tuple[WorkloadComparison, ...]
    notes: tuple[str, ...]

    def relative_to(self, directory: Path) -> "Comparison":
        """The same with the run directories as seen from `directory`, so that the tree can be moved."""
        return replace(self, workloads=tuple(_relative(workload, directory) for workload in self.workloads))


def compare(
    records: Sequence[tuple[Path, RunRecord]], *, baseline: str, margin_pct: float, curves: Curves | None = None
) -> Comparison:
    """Compare every arm with the arm `baseline`, within each workload.

    Args:
        records: run directories with their records, as `record.find_records` gives them. A directory given twice counts
            once; predicted runs are left out. Both are noted.
        baseline: label of the arm the others are compared with.
        margin_pct: loss gap, in percent of the baseline's loss, that each gap is held against.
        curves: run directory, as in `records`, -> `loss_curves.loss_curves` of its history; of a run without them, or
            without any at all, no time to a loss is known.

    Raises:
        ValueError: `margin_pct` is not positive.
    """
    if not margin_pct > 0:
        raise ValueError(f"report.margin_pct is {margin_pct}; it must be above 0")
    unique: dict[Path, Run] = {}
    for directory, record in records:
        unique.setdefault(directory.resolve(), Run(directory, record))
    runs = [run for run in unique.values() if run.record.kind == "measured"]
    pairing = pair_runs(runs, baseline)
    reasons = {run.directory: reason for run, reason in pairing.unpaired}
    return Comparison(
        schema=SCHEMA,
        baseline=baseline,
        margin_pct=margin_pct,
        workloads=tuple(
            _compare_workload(workload, pairing.pairs, reasons, baseline, margin_pct, curves or {})
            for workload in group_workloads(runs)
        ),
        notes=tuple(_notes(len(records) - len(unique), len(unique) - len(runs), runs, margin_pct)),
    )


def _compare_workload(
    workload: Workload,
    all_pairs: Sequence[Pair],
    reasons: Mapping[Path, str],
    baseline: str,
    margin_pct: float,
    curves: Curves,
) -> WorkloadComparison:
    keys = {run.record.pair_key for run in workload.runs}
    pairs = [pair for pair in all_pairs if pair.pair_key in keys]
    baseline_runs = [run for run in workload.runs if run.arm == baseline]
    arms = tuple(
        summarise_arm(
            arm,
            [run for run in workload.runs if run.arm == arm],
            baseline_runs,
            [pair for pair in pairs if pair.arm == arm],
            reasons,
        )
        for arm in sorted({run.arm for run in workload.runs}, key=lambda arm: arm_rank(arm, baseline))
    )
    verdict = reach_verdict(arms, workload.runs, pairs, baseline=baseline, margin_pct=margin_pct, curves=curves)
    return WorkloadComparison(
        title=workload.title,
        facts=workload.facts,
        arms=arms,
        verdict=verdict,
        conclusion=conclude(arms, verdict.arms, baseline=baseline, cautions=size_cautions(baseline_runs)),
        runs=tuple(_entry(run, reasons.get(run.directory)) for run in workload.runs),
    )


def arm_rank(arm: str, baseline: str) -> tuple[bool, int, str]:
    """Sort key of arms: the baseline, then the modes in their order, then the rest by name."""
    mode = arm.partition("+")[0]
    return arm != baseline, MODE_ORDER.index(mode) if mode in MODE_ORDER else len(MODE_ORDER), arm


def _entry(run: Run, reason: str | None) -> RunEntry:
    record = run.record
    return RunEntry(
        directory=run.directory.as_posix(),
        run_id=record.run_id,
        arm=run.arm,
        seed=run.seed,
        status=run.outcome,
        error=first_line(record.error) if record.error else None,
        not_paired=reason,
        contaminated=run.contamination if run.measured else None,
        tracked_at=_tracked_at(record.wandb),
    )


def _tracked_at(wandb: Mapping[str, Any]) -> str | None:
    place = wandb.get("url") or wandb.get("directory")
    return None if place is None else str(place)


def _relative(workload: WorkloadComparison, directory: Path) -> WorkloadComparison:
    base = directory.resolve()
    runs = [replace(run, directory=_path_from(base, Path(run.directory).resolve())) for run in workload.runs]
    return replace(workload, runs=tuple(runs))


def _path_from(base: Path, path: Path) -> str:
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else PurePath(path).as_posix()


def _notes(num_duplicates: int, num_predicted: int, runs: Sequence[Run], margin_pct: float) -> list[str]:
    notes = []
    if num_duplicates:
        notes.append(f"{plural(num_duplicates, 'run')} given more than once, counted once")
    if num_predicted:
        notes.append(f"{plural(num_predicted, 'predicted run')} left out: only measured runs are compared")
    recorded = {run.record.config.get("report", {}).get("margin_pct", margin_pct) for run in runs}
    for other in sorted(recorded - {margin_pct}):
        notes.append(f"the margin of {margin_pct:g}% was chosen after the runs, which recorded one of {other:g}%")
    unknown = Counter(run.unknown_contamination for run in runs if run.measured)
    for reason, count in unknown.items():
        if reason is not None:
            notes.append(f"whether anything else slowed {plural(count, 'run')} down is unknown: {reason}")
    return notes
