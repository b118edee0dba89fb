"""Pairs of every arm with the baseline arm, and their figures.

Runs with the same pair key differ only in precision. For a run without a partner the nearest baseline run is named.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.figure_keys import VAL_LOSS
from ampsweep.analysis.runs import VAL_ACCURACY, Run, Scalar
from ampsweep.analysis.statistics import Values
from ampsweep.config.field_rules import NULL
from ampsweep.finding import Finding

_MAX_DIFFERENCES: Final = 3
NOT_SET: Final = "not set"


@dataclass(frozen=True)
class Pair:
    """Measured runs of the baseline and of another arm with the same pair key; several of an arm are repeats."""

    pair_key: str
    arm: str
    baseline_runs: tuple[Run, ...]
    arm_runs: tuple[Run, ...]

    @property
    def completed(self) -> bool:
        return any(run.finished for run in self.baseline_runs) and any(run.finished for run in self.arm_runs)

    def figures(self, key: str, *, disturbed: bool = False) -> tuple[float, float] | None:
        """(baseline, arm) values of metric `key`, means over repeats; None if either is missing."""
        baseline, arm = (mean_figure(runs, key, disturbed=disturbed) for runs in (self.baseline_runs, self.arm_runs))
        return None if baseline is None or arm is None else (baseline, arm)


def in_order_of_completion(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs by the time at which both arms had a completed run; without times by seed."""

    def completed(pair: Pair) -> tuple[str, int]:
        sides = [[run for run in runs if run.finished] for runs in (pair.baseline_runs, pair.arm_runs)]
        first = [min((run.record.ended_at or "" for run in runs), default="") for runs in sides]
        return max(first), pair.arm_runs[0].seed

    return sorted(pairs, key=completed)


@dataclass(frozen=True)
class Difference:
    key: str
    there: str
    here: str


class Unpaired(Finding):
    baseline: str


class NoOtherArm(Unpaired):
    template = "no other arm has a completed run with its pair key"


class NoBaselineRun(Unpaired):
    seed: int | None = None

    @property
    def sentence(self) -> str:
        return f"there is no {self.baseline} run" + ("" if self.seed is None else f" with seed {self.seed}")


class BaselineWithoutFigures(Unpaired):
    template = "the {baseline} run with its pair key is {outcome}"
    outcome: str


class NearestRunDiffers(Unpaired):
    differences: tuple[Difference, ...]  # at most three of `num_differences`; empty if the records show none
    num_differences: int

    @property
    def sentence(self) -> str:
        if not self.differences:
            return f"its pair key is that of no {self.baseline} run, for a reason the records do not name"
        named = ", ".join(f"{fact.key} ({fact.there} there, {fact.here} here)" for fact in self.differences)
        more = self.num_differences - len(self.differences)
        return f"the nearest {self.baseline} run differs in {named}" + (f" and {more} more" if more else "")


def pair_runs(runs: Sequence[Run], baseline: str) -> tuple[list[Pair], list[tuple[Run, Unpaired]]]:
    """The pairs, and the measured runs in none with the reason."""
    measured: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.measured:
            measured[run.pair_key][run.arm].append(run)
    pairs = [
        Pair(pair_key, arm, tuple(by_arm[baseline]), tuple(of_arm))
        for pair_key, by_arm in measured.items()
        if baseline in by_arm
        for arm, of_arm in by_arm.items()
        if arm != baseline
    ]
    paired = {(pair.pair_key, arm) for pair in pairs for arm in (baseline, pair.arm)}
    left = [run for run in runs if run.measured and (run.pair_key, run.arm) not in paired]
    of_baseline = [run for run in runs if run.arm == baseline]
    without_figures = {run.recorded_key: run.outcome for run in reversed(of_baseline) if not run.measured}
    of_seed: dict[int, list[Run]] = defaultdict(list)
    for run in of_baseline:
        of_seed[run.seed].append(run)
    known = {run.directory: {**run.facts, **settings_of(run), **run.conditions} for run in (runs if left else ())}

    def reason(run: Run) -> Unpaired:
        if run.arm == baseline:
            return NoOtherArm(baseline=baseline)
        if (outcome := without_figures.get(run.recorded_key)) is not None:
            return BaselineWithoutFigures(baseline=baseline, outcome=outcome)
        if run.seed not in of_seed:
            return NoBaselineRun(baseline=baseline, seed=run.seed if of_seed else None)
        own = known[run.directory]
        nearest = min(of_seed[run.seed], key=lambda other: len(differing(own, known[other.directory])))
        return nearest_run_differs(baseline, _differences(run, nearest))

    return pairs, [(run, reason(run)) for run in left]


def nearest_run_differs(baseline: str, found: Sequence[Difference]) -> NearestRunDiffers:
    return NearestRunDiffers(baseline=baseline, differences=tuple(found[:_MAX_DIFFERENCES]), num_differences=len(found))


def differing(here: Mapping[str, Scalar], there: Mapping[str, Scalar]) -> list[Difference]:
    """The facts of a run that another has with another value; None is unknown, and differs from nothing."""
    return [
        Difference(key, there=str(there[key]), here=str(value))
        for key, value in here.items()
        if value is not None and there.get(key) not in (None, value)
    ]


def _differences(run: Run, other: Run) -> list[Difference]:
    """Compare runs of the same seed: identity, else config, else conditions, else the rest; None is unknown."""
    conditions = dict.fromkeys([*run.conditions, *other.conditions], NOT_SET)
    return (
        differing(run.facts, other.facts)
        or differing(settings_of(run), settings_of(other))
        or differing(conditions | run.conditions, conditions | other.conditions)
        or differing(_left_of_key(run), _left_of_key(other))
    )


def settings_of(run: Run) -> dict[str, Scalar]:
    return {key: NULL if value is None else value for key, value in run.settings.items()}


def _left_of_key(run: Run) -> dict[str, Scalar]:
    """The rest of the pair key: the code's version without its local part, and the content of the data."""
    version = str(run.record.environment.get("code_version", "")).partition("+")[0] or None
    return {"version": version, "data_fingerprint": run.record.identity.data_fingerprint}


def mean_figure(runs: Iterable[Run], key: str, *, disturbed: bool = False) -> float | None:
    """Mean of metric `key` over comparable repeats; None without any. `disturbed`: with contaminated runs' speed."""
    known = [run.figure(key) if disturbed and run.measured else run.compared_figure(key) for run in runs]
    values = [value for value in known if value is not None]
    return statistics.fmean(values) if values else None


Figures = dict[str, tuple[float, float]]  # pair key -> (baseline, arm)


def paired_figures(pairs: Iterable[Pair], key: str, *, disturbed: bool = False) -> Figures:
    """Figures of metric `key` in pairs that have both; times, energies and peaks only if positive."""
    found = {pair.pair_key: both for pair in pairs if (both := pair.figures(key, disturbed=disturbed)) is not None}
    return {name: both for name, both in found.items() if key in (VAL_LOSS, VAL_ACCURACY) or min(both) > 0}


def one_side(figures: Figures, *, of_baseline: bool) -> dict[str, float]:
    return {key: both[0 if of_baseline else 1] for key, both in figures.items()}


def figures_of_runs(runs: Iterable[Run], key: str) -> Values:
    """Figures by pair key of runs with or without a pair; repeats are averaged."""
    repeats: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        repeats[run.pair_key].append(run)
    means = {name: mean_figure(runs, key) for name, runs in repeats.items()}
    return {name: mean for name, mean in means.items() if mean is not None}
