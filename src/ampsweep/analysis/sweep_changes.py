"""Two sweeps of the same arms, OLD and NEW: what regressed, and what is not known."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ampsweep.analysis.arm_changes import ArmChange, arm_change
from ampsweep.analysis.comparison import FileProblem, notes_on_figures
from ampsweep.analysis.figure_keys import FigureKeys
from ampsweep.analysis.foreign_runs import NotConsidered, prepare
from ampsweep.analysis.pairing import Unpaired
from ampsweep.analysis.run_findings import NotPaired, RunFinding, findings_of_run, merged
from ampsweep.analysis.runs import Run
from ampsweep.analysis.sweep_pairs import ConditionsChanged, PairedWorkload, Side, pair_sweeps
from ampsweep.analysis.workloads import arm_rank
from ampsweep.finding import Finding
from ampsweep.records import RunRecord

Records = Sequence[tuple[Path, RunRecord]]


class SearchesLeftOut(Finding):
    severity = "warning"
    template = "{num_runs:count search run} left out: each trains with a largest batch of its own"
    num_runs: int


class SameRuns(Finding):
    severity = "warning"
    template = "OLD and NEW are the same runs"


@dataclass(frozen=True, kw_only=True)
class WorkloadChange:
    title: str
    arms: tuple[ArmChange, ...]
    conditions: ConditionsChanged

    @property
    def keys(self) -> FigureKeys:
        return self.arms[0].keys


@dataclass(frozen=True, kw_only=True)
class NotCounted:
    """Runs whose figures do not fully count, or that have no counterpart."""

    side: Side
    arm: str
    finding: RunFinding


@dataclass(frozen=True, kw_only=True)
class SweepChanges:
    margin_pct: float  # of the final loss
    tolerance_pct: float  # of step time and peak memory
    workloads: tuple[WorkloadChange, ...]
    dropped: tuple[str, ...]  # arms of OLD without a pair
    not_counted: tuple[NotCounted, ...]
    file_problems: tuple[FileProblem, ...]
    notes: tuple[Finding, ...]

    @property
    def named_arms(self) -> list[tuple[str, ArmChange]]:
        """The arms by names that distinguish them: 'amp_bf16 (batch_size 8)' if there are several workloads."""
        several = len(self.workloads) > 1
        of = [(f" ({workload.title})" if several else "", arm) for workload in self.workloads for arm in workload.arms]
        return [(f"{arm.arm}{title}", arm) for title, arm in of]

    @property
    def regressions(self) -> list[str]:
        found = [(name, ", and ".join(arm.regressions)) for name, arm in self.named_arms]
        return [f"{name} {clauses}" for name, clauses in found if clauses]

    @property
    def not_known(self) -> str:
        """'the speed and val loss of amp_bf16, all of tf32'; empty if all is known."""
        arms_of: dict[str, dict[str, None]] = defaultdict(dict)
        for name, arm in self.named_arms:
            arms_of |= {topic: arms_of[topic] | {name: None} for topic, _ in arm.not_known}
        topics_of: dict[str, list[str]] = defaultdict(list)
        for topic, arms in arms_of.items():
            topics_of[_and(arms)].append(topic)
        known = [f"the {_and(topics)} of {arms}" for arms, topics in topics_of.items()]
        return ", ".join([*known, *([f"all of {_and(self.dropped)}"] if self.dropped else [])])

    @property
    def sentence(self) -> str:
        unknown = self.not_known
        if self.regressions:
            return f"Regression: {'; '.join(self.regressions)}."
        if unknown:
            return f"No regression is shown, but not known: {unknown}."
        arms = [arm for _, arm in self.named_arms if arm.has_completed]
        names, counts = dict.fromkeys(arm.arm for arm in arms), {arm.num_pairs for arm in arms}
        n = f" (n={counts.pop()})" if len(counts) == 1 else ""
        better = " or better" if any(arm.is_better for arm in arms) else ""
        be, learn = ("are", "learn") if len(names) > 1 else ("is", "learns")
        return (
            f"No regression: {_and(names)} {be} as fast, as small and {learn} as well{better}, within the margins{n}."
        )


def _and(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def compare_sweeps(
    old: Records,
    new: Records,
    *,
    margin_pct: float,
    tolerance_pct: float,
    keys: FigureKeys,
    file_problems: Sequence[FileProblem] = (),
    notes: Sequence[Finding] = (),
) -> SweepChanges:
    """Compare the measured runs of two sweeps, arm by arm.

    Args:
        margin_pct: loss gap, in percent of OLD's loss, that counts as none.
        tolerance_pct: growth of step time or peak memory, in percent of OLD's, that counts as none.
        keys: the metric that decides parity (`chosen_metric`).
    """
    prepared, of_foreign = prepare([Run(*entry) for entry in (*old, *new)], keys)
    prepared, names = _without_names(prepared)
    of_old, of_new = (
        [run for run in side if run.record.kind == "measured" and run.record.batch_search is None]
        for side in (prepared[: len(old)], prepared[len(old) :])
    )
    found, unpaired = pair_sweeps(of_old, of_new)
    paired = {pair.arm for workload in found for pair in workload.pairs}
    own_notes: list[Finding] = [*of_foreign, *names, *notes_on_figures([*of_old, *of_new], margin_pct)]
    if num_searches := sum(run.record.batch_search is not None for run in prepared):
        own_notes.append(SearchesLeftOut(num_runs=num_searches))
    if {record.run_id for _, record in old} == {record.run_id for _, record in new}:
        own_notes.append(SameRuns())
    return SweepChanges(
        margin_pct=margin_pct,
        tolerance_pct=tolerance_pct,
        workloads=tuple(_workload_change(of, margin_pct, tolerance_pct) for of in found),
        dropped=tuple(dict.fromkeys(run.arm for run in of_old if run.arm not in paired)),
        not_counted=(*_not_counted("OLD", of_old, unpaired), *_not_counted("NEW", of_new, unpaired)),
        file_problems=tuple(file_problems),
        notes=(*notes, *own_notes),
    )


def _without_names(runs: Sequence[Run]) -> tuple[list[Run], list[Finding]]:
    """Leave out keys of other trainings that differ in each run, as names do; with a single arm `prepare` may not."""
    columns = {key: [of.own.get(key) for of in runs] for run in runs for key in run.own}
    names = tuple(key for key, values in columns.items() if len(set(values)) == len(values) > 2)
    kept = [replace(run, own={key: run.own[key] for key in run.own if key not in names}) for run in runs]
    return kept, [NotConsidered(keys=names)] if names else []


def _not_counted(
    side: Side, runs: Sequence[Run], unpaired: Iterable[tuple[Side, Run, Unpaired]]
) -> Iterator[NotCounted]:
    reasons = {run.directory: reason for of, run, reason in unpaired if of == side}
    for arm in dict.fromkeys(run.arm for run in runs):
        found = [finding for run in runs if run.arm == arm for finding in findings_of_run(run)]
        found += [
            NotPaired(seeds=(run.seed,), reason=reasons[run.directory])
            for run in runs
            if run.arm == arm and run.directory in reasons
        ]
        yield from (NotCounted(side=side, arm=arm, finding=of) for of in merged(of for of in found if of.consequence))


def _workload_change(paired: PairedWorkload, margin_pct: float, tolerance_pct: float) -> WorkloadChange:
    arms = sorted({pair.arm for pair in paired.pairs}, key=lambda arm: arm_rank(arm, ""))
    pairs_of = {arm: [pair for pair in paired.pairs if pair.arm == arm] for arm in arms}
    changes = (arm_change(arm, pairs, margin_pct, tolerance_pct) for arm, pairs in pairs_of.items())
    return WorkloadChange(title=paired.workload.title, arms=tuple(changes), conditions=paired.conditions)
