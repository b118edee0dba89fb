"""Trainings that are not the suite's: which keys of their own config are workload, which are the arm's, which neither.

A key of which arms share values at a seed, so that all of them might pair, distinguishes workloads: runs pair only
where it agrees. Of the rest, a key with one value in each arm (of a seed and a workload) belongs to the arms, and what
it changes is their difference too; with several it distinguishes workloads that never pair. A key with another value in
each run, such as a name, does nothing.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ampsweep.analysis.figure_keys import MEMORY_WORDS, PEAK_MEMORY, FigureKeys
from ampsweep.analysis.runs import Run, leaves
from ampsweep.finding import Finding
from ampsweep.records import RunRecord
from ampsweep.text import listed

OF_PRECISION: Final = re.compile(
    r"precision|(^|[^a-z])(amp|autocast|dtype|fp16|bf16|fp32|tf32|fp8|half|float16|bfloat16|grad_?scaler?)([^a-z]|$)"
)
"""Names of keys that say in which precision an arm trains, as the arm itself does."""
_OF_PLACE: Final = re.compile(
    r"(^|[_./])(host|hostname|node|rank|local_rank|pid|port|gpu_ids?|job_id|run_id|user|timestamp|date|time|started_at|"
    r"run_name|(output|logging|log|save|ckpt|checkpoint|work|run|tb|wandb)_?(dir|path|folder))$"
)
"""Names of keys about where, when and under what name a training ran, which changes nothing in it."""
_NAME_OR_PATH: Final = re.compile(
    r"(name|id|dir|path|folder|file|url|tags?|notes?|hash|commit|token|group|argument)s?$"
)


class ArmsDiffer(Finding):
    """Keys of the trainings' own config that follow the arm: what they change cannot be told from the precision."""

    severity = "warning"
    template = "the arms also differ in {in_words:few}"
    keys: dict[str, dict[str, list[str]]]  # key -> values -> the arms that have them

    @property
    def in_words(self) -> list[str]:
        return [
            f"{key}: " + " or ".join(f"{values} ({listed(arms)})" for values, arms in arms_of.items())
            for key, arms_of in self.keys.items()
        ]


class NotConsidered(Finding):
    """Keys of which no value occurs twice."""

    severity = "warning"
    template = "runs were paired whatever they have as {keys:few}, of which each run has another value"
    keys: tuple[str, ...]


def prepare(runs: Sequence[Run], keys: FigureKeys) -> tuple[list[Run], list[Finding]]:
    """Give each run the figures that it is compared by, and of other trainings the keys that distinguish workloads."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.record.source, run.record.identity.experiment].append(run)
    prepared, notes = dict[Path, Run](), list[Finding]()
    for (source, _), group in groups.items():
        recorded = [key for key in MEMORY_WORDS if any(key in run.record.summary for run in group)]
        memory = PEAK_MEMORY if source == "suite" or not recorded else recorded[0]
        configs = [leaves(run.record.config.get("own", {})) for run in group]
        of_workload, found = _sorted_keys(group, configs)
        notes += found
        for run, config in zip(group, configs, strict=True):
            own = {key: value for key, value in config.items() if key in of_workload}
            record = _with_divergence(run.record, keys.metric)
            prepared[run.directory] = replace(run, record=record, keys=replace(keys, memory=memory), own=own)
    return [prepared[run.directory] for run in runs], notes


def _with_divergence(record: RunRecord, metric: str) -> RunRecord:
    """A training that is only known from its metrics has diverged if its last loss or score is not finite."""
    last: object = record.summary.get(metric)
    if record.source != "wandb" or record.status != "completed" or not isinstance(last, str):
        return record
    return replace(record, status="diverged", error=f"its last {metric} is {last}")


def _sorted_keys(runs: Sequence[Run], configs: Sequence[Mapping[str, object]]) -> tuple[set[str], list[Finding]]:
    """The keys that distinguish workloads, and findings on the others; a key that a run lacks has no value there."""
    keys = dict.fromkeys(key for config in configs for key in config if not _OF_PLACE.search(key.lower()))
    columns = {key: [str(config.get(key, "not set")) for config in configs] for key in keys}
    of_workload = {key for key, values in columns.items() if len(set(values)) == 1 or _connects(runs, values)}
    cells = [(run.arm, run.seed, *(columns[key][place] for key in of_workload)) for place, run in enumerate(runs)]
    arms, of_arms, of_none = dict.fromkeys(run.arm for run in runs), dict[str, dict[str, list[str]]](), list[str]()
    for key, values in [item for item in columns.items() if item[0] not in of_workload]:
        if len(set(values)) == len(values) > len(arms):
            of_none += [] if _NAME_OR_PATH.search(key.lower()) else [key]
        elif len(set(zip(cells, values, strict=True))) > len(set(cells)):
            of_workload.add(key)
        elif not (OF_PRECISION.search(key.lower()) or _is_arm(runs, values)):
            arms_of: dict[str, list[str]] = defaultdict(list)
            for arm in arms:
                own = dict.fromkeys(value for run, value in zip(runs, values, strict=True) if run.arm == arm)
                arms_of[listed(own, limit=2)].append(arm)
            of_arms[key] = arms_of
    notes: list[Finding] = [ArmsDiffer(keys=of_arms)] if of_arms else []
    return of_workload, notes + ([NotConsidered(keys=tuple(of_none))] if of_none else [])


def _is_arm(runs: Sequence[Run], values: Sequence[str]) -> bool:
    """Return True if each value has the name of the run's arm among its words, as an argument such as `fp32` has."""
    return all(run.arm in re.findall(r"[\w.+-]+", value) for run, value in zip(runs, values, strict=True))


def _connects(runs: Sequence[Run], values: Sequence[str]) -> bool:
    """Return True if each arm shares a value at a seed with another, directly or through others: all might pair."""
    arms_of: dict[tuple[int, str], set[str]] = defaultdict(set)
    for run, value in zip(runs, values, strict=True):
        arms_of[run.seed, value].add(run.arm)
    reached, rest = {runs[0].arm}, list(arms_of.values())
    while near := [found for found in rest if found & reached]:
        reached.update(*near)
        rest = [found for found in rest if not found & reached]
    return len(reached) == len({run.arm for run in runs})
