"""Two sweeps of the same arms, OLD and NEW: what regressed, and what is not known."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ampsweep.analysis.arm_changes import ArmChange, arm_change
from ampsweep.analysis.comparison import FileProblem, notes_on_figures
from ampsweep.analysis.figure_keys import FigureKeys
from ampsweep.analysis.foreign_runs import NotConsidered, prepare
from ampsweep.analysis.pairing import NoBaselineRun, Pair, Unpaired
from ampsweep.analysis.run_findings import RunFinding, findings_of_run, merged
from ampsweep.analysis.runs import Run
from ampsweep.analysis.sweep_pairs import ConditionsChanged, PairedWorkload, Side, pair_sweeps
from ampsweep.analysis.workloads import arm_rank
from ampsweep.finding import Finding
from ampsweep.records import RunRecord
from ampsweep.text import listed, plural

_MAX_NAMED: Final = 5  # arms in a sentence; all are in the JSON
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
    not_compared: tuple[str, ...]  # arms of OLD without a pair in some workload, in words
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
        topics_of: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for topic, arms in arms_of.items():
            topics_of[tuple(arms)].append(topic)
        known = [f"the {_and(topics)} of {_and(arms)}" for arms, topics in topics_of.items()]
        return ", ".join([*known, *self.not_compared])

    @property
    def sentence(self) -> str:
        if found := self.regressions:
            more = f"; and of {plural(len(found) - _MAX_NAMED, 'more arm')}" if len(found) > _MAX_NAMED else ""
            return f"Regression: {'; '.join(found[:_MAX_NAMED])}{more}."
        if unknown := self.not_known:
            return f"No regression is shown, but not known: {unknown}."
        arms = [arm for _, arm in self.named_arms if arm.has_completed]
        names, counts = dict.fromkeys(arm.arm for arm in arms), {arm.new.num_completed_pairs for arm in arms}
        n = f" (n={counts.pop()})" if len(counts) == 1 else ""
        good = "as well or better" if any(arm.is_better for arm in arms) else "as well"
        be, learn = ("are", "learn") if len(names) > 1 else ("is", "learns")
        return f"No regression: {_and(names)} {be} as fast, as small and {learn} {good}, within the margins{n}."


def _and(names: Iterable[str]) -> str:
    *others, last = names
    if len(others) > _MAX_NAMED:
        return listed([*others, last], limit=_MAX_NAMED)
    return f"{', '.join(others)} and {last}" if others else last


def compare_sweeps(
    old: Records,
    new: Records,
    *,
    margin_pct: float,
    tolerance_pct: float,
    keys: FigureKeys,
    file_problems: Sequence[FileProblem],
    notes: Sequence[Finding],
) -> SweepChanges:
    """Compare the measured runs of two sweeps, arm by arm.

    Args:
        margin_pct: loss gap, in percent of OLD's loss, that counts as none.
        tolerance_pct: growth of step time or peak memory, in percent of OLD's, that counts as none.
        keys: the metric that decides parity (`chosen_metric`).
        notes: more findings, such as on runs that are not among the records.
    """
    runs, of_foreign = prepare([Run(*entry) for entry in (*old, *new)], keys)
    runs, own_notes = _without_names(runs)
    of_old, of_new = (
        [run for run in side if run.record.kind == "measured" and run.record.batch_search is None]
        for side in (runs[: len(old)], runs[len(old) :])
    )
    if num_searches := sum(run.record.batch_search is not None for run in runs):
        own_notes.append(SearchesLeftOut(num_runs=num_searches))
    if {record.run_id for _, record in old} == {record.run_id for _, record in new}:
        own_notes.append(SameRuns())
    found, unpaired = pair_sweeps(of_old, of_new)
    return SweepChanges(
        margin_pct=margin_pct,
        tolerance_pct=tolerance_pct,
        workloads=tuple(_workload_change(of, margin_pct, tolerance_pct) for of in found),
        not_compared=tuple(_not_compared(found, unpaired)),
        not_counted=(*_not_counted("OLD", of_old, unpaired), *_not_counted("NEW", of_new, unpaired)),
        file_problems=tuple(file_problems),
        notes=(*notes, *of_foreign, *own_notes, *notes_on_figures([*of_old, *of_new], margin_pct)),
    )


_UnpairedRuns = Sequence[tuple[Side, Run, Unpaired]]


def _without_names(runs: Sequence[Run]) -> tuple[list[Run], list[Finding]]:
    """Leave out keys of other trainings that differ in each run, as names do; with a single arm `prepare` may not."""
    columns = {key: [of.own.get(key) for of in runs] for run in runs for key in run.own}
    names = tuple(key for key, values in columns.items() if len(set(values)) == len(values) > 2)
    kept = [replace(run, own={key: run.own[key] for key in run.own if key not in names}) for run in runs]
    return kept, [NotConsidered(keys=names)] if names else []


def _not_compared(found: Sequence[PairedWorkload], unpaired: _UnpairedRuns) -> Iterator[str]:
    paired = {pair.arm for workload in found for pair in workload.pairs}
    left = [(run.arm, reason) for side, run, reason in unpaired if side == "OLD"]
    if dropped := dict.fromkeys(arm for arm, _ in left if arm not in paired):
        yield f"all of {_and(dropped)}"
    elsewhere = dict.fromkeys(arm for arm, why in left if arm in paired and not isinstance(why, NoBaselineRun))
    if elsewhere:
        yield f"{_and(elsewhere)} in workloads of OLD alone"


def _not_counted(side: Side, runs: Sequence[Run], unpaired: _UnpairedRuns) -> Iterator[NotCounted]:
    reasons = {run.directory: reason for of, run, reason in unpaired if of == side}
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        found = (of for run in own for of in findings_of_run(run, reasons.get(run.directory)) if of.consequence)
        yield from (NotCounted(side=side, arm=arm, finding=of) for of in merged(found))


def _workload_change(paired: PairedWorkload, margin_pct: float, tolerance_pct: float) -> WorkloadChange:
    pairs_of: dict[str, list[Pair]] = defaultdict(list)
    for pair in sorted(paired.pairs, key=lambda pair: arm_rank(pair.arm, "")):
        pairs_of[pair.arm].append(pair)
    arms = [arm_change(*of, margin_pct=margin_pct, tolerance_pct=tolerance_pct) for of in pairs_of.items()]
    return WorkloadChange(title=paired.workload.title, arms=tuple(arms), conditions=paired.conditions)
