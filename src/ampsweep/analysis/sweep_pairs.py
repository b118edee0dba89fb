"""Pairs of the same training in two sweeps, OLD and NEW.

Runs pair by arm, seed and workload. What a user may have changed between the sweeps (`conditions`) keeps no run from
pairing: it is reported. A setting that only one of two runs has, as those of other versions may, distinguishes none.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.pairing import (
    NOT_SET,
    Difference,
    NoBaselineRun,
    Pair,
    Unpaired,
    differing,
    nearest_run_differs,
    settings_of,
)
from ampsweep.analysis.runs import Run, Scalar
from ampsweep.analysis.workloads import Workload, group_workloads
from ampsweep.config.identity import NO_RESULT
from ampsweep.finding import Finding
from ampsweep.text import listed

Side = Literal["OLD", "NEW"]

_OF_DEVICE: Final = ("device", "device_name")
_OF_ENVIRONMENT: Final = ("code_version", "python", "driver")
_NAMES: Final = {"code_version": "ampsweep", "device_name": "device model", "num_threads": "CPU threads"}


class ConditionsChanged(Finding):
    changes: tuple[Difference, ...]  # `there` in OLD, `here` in NEW

    @property
    def sentence(self) -> str:
        if not self.changes:
            return "no condition changed from OLD to NEW that the records know (torch, device, code, threads)"
        return "changed from OLD to NEW: " + ", ".join(f"{of.key} {of.there} -> {of.here}" for of in self.changes)


class SeveralAgree(Unpaired):
    template = "several {baseline} runs agree with it that differ in {keys:few}"
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairedWorkload:
    workload: Workload  # of NEW
    pairs: tuple[Pair, ...]  # of each arm and seed; `baseline_runs` are OLD's
    conditions: ConditionsChanged


def pair_sweeps(
    old: Sequence[Run], new: Sequence[Run]
) -> tuple[list[PairedWorkload], list[tuple[Side, Run, Unpaired]]]:
    """The workloads of NEW that have pairs, and the runs of both sweeps in none, with the reason."""
    found, unpaired = list[PairedWorkload](), list[tuple[Side, Run, Unpaired]]()
    paired = set[int]()
    for workload in group_workloads(new):
        groups, pairs = defaultdict[tuple[str, int], list[Run]](list), list[Pair]()
        for run in workload.runs:
            groups[run.arm, run.seed].append(run)
        for (arm, seed), runs in groups.items():
            others = _counterparts(runs, old)
            keys = [of.key for other in others[1:] for of in _unlike(others[0], other, and_device=True)]
            if others and not keys:
                pairs.append(Pair(str(seed), arm, tuple(others), tuple(runs)))
                paired.update(map(id, others))
            for run in runs if keys or not others else ():
                reason = SeveralAgree(baseline="OLD", keys=tuple(keys)) if keys else _reason(run, old, "OLD")
                unpaired.append(("NEW", run, reason))
        if pairs:
            found.append(PairedWorkload(workload=workload, pairs=tuple(pairs), conditions=_changes(pairs)))
    unpaired += [("OLD", run, _reason(run, new, "NEW")) for run in old if id(run) not in paired]
    return found, unpaired


def _counterparts(runs: Sequence[Run], old: Iterable[Run]) -> list[Run]:
    """OLD's runs of the same training, of those under several conditions the nearest."""
    of_seed = [other for other in old if (other.arm, other.seed) == (runs[0].arm, runs[0].seed)]
    agreeing = [other for other in of_seed if not any(_unlike(run, other) for run in runs)]
    changed = [len(differing(conditions(runs[0]), conditions(other))) for other in agreeing]
    return [other for other, number in zip(agreeing, changed, strict=True) if number == min(changed)]


def _unlike(run: Run, other: Run, *, and_device: bool = False) -> list[Difference]:
    """What makes two runs of an arm and a seed different trainings, on any device unless `and_device`."""
    # The suite's own config says all of a workload; of other trainings the experiment may be all that is known.
    left_out = set[str]() if and_device else {*_OF_DEVICE}
    left_out |= {"experiment"} if run.record.source == "suite" else set()
    facts = {key: value for key, value in run.facts.items() if key not in left_out}
    return differing(facts, other.facts) or differing(_settings(run), _settings(other))


def _settings(run: Run) -> dict[str, Scalar]:
    known = settings_of(run)
    if run.record.source == "suite":
        known = {key: value for key, value in known.items() if NO_RESULT.isdisjoint((key, key.partition(".")[0]))}
    return known | {"data_fingerprint": run.record.identity.data_fingerprint}


def _reason(run: Run, others: Iterable[Run], side: Side) -> Unpaired:
    of_arm = [other for other in others if other.arm == run.arm]
    of_seed = [other for other in of_arm if other.seed == run.seed]
    unlike = [_unlike(run, other) or differing(conditions(run), conditions(other)) for other in of_seed]
    if not unlike:
        return NoBaselineRun(baseline=side, seed=run.seed if of_arm else None)
    return nearest_run_differs(side, min(unlike, key=len))


def conditions(run: Run) -> dict[str, Scalar]:
    """What a user may change between two sweeps of one workload: versions, own code, device, machine, threads."""
    known = {key: run.facts[key] for key in _OF_DEVICE}
    known |= {key: run.record.environment.get(key) for key in _OF_ENVIRONMENT}
    known |= {"machine": next((of.host for of in reversed(run.record.attempts)), None), **run.conditions}
    return {key: value for key, value in known.items() if value is not None}


def _changes(pairs: Sequence[Pair]) -> ConditionsChanged:
    of_sides = [[pair.baseline_runs for pair in pairs], [pair.arm_runs for pair in pairs]]
    # A run that never began has no environment.
    sides = [[conditions(run) for runs in side for run in runs if run.record.environment] for side in of_sides]
    changes = []
    for key in dict.fromkeys(key for side in sides for of_run in side for key in of_run):
        there, here = (dict.fromkeys(str(of.get(key, NOT_SET)) for of in side) for side in sides)
        if there and here and there.keys() != here.keys():
            name = _NAMES.get(key, key.removeprefix("packages.").removeprefix("variables."))
            changes.append(Difference(name, there=listed(there, limit=3), here=listed(here, limit=3)))
    return ConditionsChanged(changes=tuple(changes))
