"""Pairing of every arm with the baseline arm: runs that share a pair key differ in nothing but precision.

A run without a partner is told the one that differs least from it, found among many by tables of numbers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ampsweep.analysis.runs import Run, Scalar
from ampsweep.text import first_line

_MAX_DIFFERENCES: Final = 3
_NOT_SET: Final = "not set"
_UNKNOWN: Final = 0
_NOBODY_ELSES: Final = -1
"""Numbers of values: of what is not known, and of one that no run of the table has."""


def is_known(value: object) -> bool:
    """True for what two runs can differ in: texts and numbers."""
    return isinstance(value, str | int | float)


def or_not_set(conditions: Mapping[str, Scalar], others: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The conditions, with those that only others have as `not set`."""
    return {key: conditions.get(key, _NOT_SET) for key in {**conditions, **others}}


class NearestRun:
    """Finds which of `runs`, at least one, differs least from another run: in facts, settings, conditions, environment.

    Runs that differ in their facts are compared by the number of those only; those alike in them by their settings, and
    so on. Of equally near ones it is the first.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def to(self, run: Run) -> Run:
        """The run nearest to `run`."""
        if len(self._runs) == 1:
            return self._runs[0]
        differing = np.zeros(len(self._runs), dtype=np.int64)
        for of, table in self._tables:
            differing = np.where(differing == 0, table.num_differing(of(run)), differing)
        return self._runs[int(differing.argmin())]

    @cached_property
    def _tables(self) -> list[tuple[Callable[[Run], Mapping[str, Any]], "_Table"]]:
        of_run: list[tuple[Callable[[Run], Mapping[str, Any]], str | None]] = [
            (lambda run: run.facts, None),
            (lambda run: run.settings, None),
            (lambda run: run.conditions, _NOT_SET),
            (lambda run: run.record.environment, None),
        ]
        return [(of, _Table([of(run) for run in self._runs], absent)) for of, absent in of_run]


class _Table:
    """Mappings as rows of numbers: a column a key, where equal values of it have one number.

    Args:
        mappings: the rows.
        absent: the value of a key that a row, or what it is compared with, lacks; None: it is not known.
    """

    def __init__(self, mappings: Sequence[Mapping[str, Any]], absent: str | None) -> None:
        self._absent = absent
        self._numbers: dict[str, dict[Any, int]] = {key: {} for one in mappings for key in one}
        self._rows = np.array([self._row(one, grows=True) for one in mappings], dtype=np.int32)

    def num_differing(self, mapping: Mapping[str, Any]) -> NDArray[np.int64]:
        """The number of keys, by row, whose values are known in both and differ."""
        row = np.array(self._row(mapping, grows=False), dtype=np.int32)
        differs = (self._rows != row) & (self._rows != _UNKNOWN) & (row != _UNKNOWN)
        others = (value for key, value in mapping.items() if key not in self._numbers)
        num_others = 0 if self._absent is None else sum(is_known(one) and one != self._absent for one in others)
        counts: NDArray[np.int64] = differs.sum(axis=1) + num_others
        return counts

    def _row(self, mapping: Mapping[str, Any], *, grows: bool) -> list[int]:
        row = []
        for key, numbers in self._numbers.items():
            value = mapping.get(key, self._absent)
            if not is_known(value):
                row.append(_UNKNOWN)
            else:
                row.append(numbers.setdefault(value, len(numbers) + 1) if grows else numbers.get(value, _NOBODY_ELSES))
        return row


@dataclass(frozen=True)
class Pair:
    """The measured runs of the baseline and of one other arm under one pair key; several of an arm are repeats."""

    pair_key: str
    arm: str
    baseline_runs: tuple[Run, ...]
    arm_runs: tuple[Run, ...]

    @property
    def completed(self) -> bool:
        """True if both arms took all of their steps."""
        return any(run.finished for run in self.baseline_runs) and any(run.finished for run in self.arm_runs)

    def figures(self, key: str) -> tuple[float, float] | None:
        """(baseline, arm) values of summary metric `key`, each the mean over its repeats; None if either lacks it."""
        return _both(_mean_figure(self.baseline_runs, key), _mean_figure(self.arm_runs, key))

    def speed_figures(self, key: str) -> tuple[float, float] | None:
        """The same as `figures`, of uncontaminated runs only: for metrics that depend on time."""
        return self._of(lambda run: run.contamination is None).figures(key)

    def final_figures(self, key: str) -> tuple[float, float] | None:
        """The same as `figures`, of runs that took all of their steps only."""
        return self._of(lambda run: run.finished).figures(key)

    def _of(self, counts: Callable[[Run], bool]) -> "Pair":
        baseline, arm = (tuple(filter(counts, runs)) for runs in (self.baseline_runs, self.arm_runs))
        return replace(self, baseline_runs=baseline, arm_runs=arm)


@dataclass(frozen=True)
class Difference:
    """A fact in which two runs differ, its values as the records have them."""

    key: str
    there: str
    here: str


UnpairedKind = Literal[
    "not measured",
    "no other arm",
    "no baseline run",
    "no baseline run of this seed",
    "baseline run without figures",
    "nearest baseline run differs",
    "unknown difference",
]


@dataclass(frozen=True, kw_only=True)
class Unpaired:
    """The reason why a run is in no pair, with the facts of its kind."""

    kind: UnpairedKind
    baseline: str
    seed: int | None = None
    outcome: str | None = None
    """The end of the run itself, or of the baseline run with its pair key."""
    error: str | None = None
    """The record's error, for a run without figures."""
    differences: tuple[Difference, ...] = ()
    """The most telling ones from the nearest baseline run, three at most of `num_differences`."""
    num_differences: int = 0


@dataclass(frozen=True)
class Pairing:
    """The pairs, and the runs that are in none, each with the reason."""

    pairs: tuple[Pair, ...]
    unpaired: tuple[tuple[Run, Unpaired], ...]

    def of(self, runs: Iterable[Run]) -> list[Pair]:
        """The pairs with the pair keys of `runs`, in their order among all."""
        keys = {run.pair_key for run in runs}
        return [self.pairs[place] for place in sorted(place for key in keys for place in self._places.get(key, ()))]

    @cached_property
    def _places(self) -> Mapping[str, list[int]]:
        places: dict[str, list[int]] = defaultdict(list)
        for place, pair in enumerate(self.pairs):
            places[pair.pair_key].append(place)
        return places


def pair_runs(runs: Sequence[Run], baseline: str) -> Pairing:
    """Pair the runs of every arm with those of the arm `baseline` that have the same pair key.

    Runs cut short pair (for speed and memory), contaminated ones (for memory and loss) too; runs with another status
    than `completed`, and those whose proof contradicts their mode, do not.
    """
    measured: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.measured:
            measured[run.pair_key][run.arm].append(run)
    pairs = tuple(
        Pair(pair_key, arm, tuple(by_arm[baseline]), tuple(of_arm))
        for pair_key, by_arm in measured.items()
        if baseline in by_arm
        for arm, of_arm in by_arm.items()
        if arm != baseline
    )
    paired = {(pair.pair_key, arm) for pair in pairs for arm in (baseline, pair.arm)}
    left = [run for run in runs if not run.measured or (run.pair_key, run.arm) not in paired]
    baselines = _Baselines([run for run in runs if run.arm == baseline])
    return Pairing(pairs, tuple((run, _reason(run, baseline, baselines)) for run in left))


class _Baselines:
    """The runs of the baseline, by pair key and by seed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.outcome_without_figures: dict[str, str] = {}
        """Record's pair key -> the end of its first run that has no figures."""
        of_seed: dict[int, list[Run]] = defaultdict(list)
        for run in runs:
            of_seed[run.seed].append(run)
            if not run.measured:
                self.outcome_without_figures.setdefault(run.record.pair_key, run.outcome)
        self.of_seed = {seed: NearestRun(some) for seed, some in of_seed.items()}


def _reason(run: Run, baseline: str, baselines: _Baselines) -> Unpaired:
    if not run.measured:
        why = run.record.error or "; ".join(run.contradictions)
        error = first_line(why) if why else None
        return Unpaired(kind="not measured", baseline=baseline, outcome=run.outcome, error=error)
    if run.arm == baseline:
        return Unpaired(kind="no other arm", baseline=baseline)
    if not baselines.of_seed:
        return Unpaired(kind="no baseline run", baseline=baseline)
    if (outcome := baselines.outcome_without_figures.get(run.record.pair_key)) is not None:
        return Unpaired(kind="baseline run without figures", baseline=baseline, outcome=outcome)
    if run.seed not in baselines.of_seed:
        return Unpaired(kind="no baseline run of this seed", baseline=baseline, seed=run.seed)
    differences = _differences(run, baselines.of_seed[run.seed].to(run))
    if not differences:
        return Unpaired(kind="unknown difference", baseline=baseline)
    return Unpaired(
        kind="nearest baseline run differs",
        baseline=baseline,
        differences=tuple(differences[:_MAX_DIFFERENCES]),
        num_differences=len(differences),
    )


def _differences(run: Run, other: Run) -> list[Difference]:
    """The differences of two runs of one seed, most telling first: identity, config, conditions, else environment."""
    mine, theirs = run.record.environment, other.record.environment
    for left, right in (
        (run.facts, other.facts),
        (run.settings, other.settings),
        (or_not_set(run.conditions, other.conditions), or_not_set(other.conditions, run.conditions)),
        (mine, theirs),
    ):
        found = [
            Difference(key, there=str(right[key]), here=str(value))
            for key, value in left.items()
            if is_known(value) and is_known(right.get(key)) and right[key] != value
        ]
        if found:
            return found
    return []


def _mean_figure(runs: Sequence[Run], key: str) -> float | None:
    values = [value for run in runs if (value := run.figure(key)) is not None]
    return sum(values) / len(values) if values else None


def _both(baseline: float | None, arm: float | None) -> tuple[float, float] | None:
    return None if baseline is None or arm is None else (baseline, arm)
