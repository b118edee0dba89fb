"""Figures of the pairs behind the rows of a table, so that what stands in a row agrees with its differences."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import ENERGY_OF_SAMPLE, PEAK_MEMORY, STEP_MS, VAL_ACCURACY, VAL_LOSS, Run
from ampsweep.analysis.statistics import geometric_mean
from ampsweep.text import GIB


@dataclass(frozen=True, kw_only=True)
class BaselineThere:
    """The baseline's figures in the pairs of another arm; None where they are those of the baseline's own row."""

    step_ms: float | None
    peak_memory_bytes: float | None
    val_loss: float | None
    val_accuracy: float | None


Figures = dict[str, tuple[float, float]]
"""Pair key -> (baseline, arm), of the pairs that have both."""


def times_of(pairs: Iterable[Pair]) -> Figures:
    """Step times in ms of the uncontaminated runs."""
    known = _known((pair.pair_key, pair.speed_figures(STEP_MS)) for pair in pairs)
    return {key: both for key, both in known.items() if min(both) > 0}


def energies_of(pairs: Iterable[Pair]) -> Figures:
    """Joules a training sample of the uncontaminated runs."""
    known = _known((pair.pair_key, pair.speed_figures(ENERGY_OF_SAMPLE)) for pair in pairs)
    return {key: both for key, both in known.items() if min(both) > 0}


def peaks_of(pairs: Iterable[Pair]) -> Figures:
    """Peaks of memory in GiB."""
    known = _known((pair.pair_key, pair.figures(PEAK_MEMORY)) for pair in pairs)
    return {key: both for key, both in known.items() if both[0] > 0}


def losses_of(pairs: Iterable[Pair]) -> Figures:
    """Final validation losses of runs that took all of their steps."""
    return _known((pair.pair_key, pair.final_figures(VAL_LOSS)) for pair in pairs)


def accuracies_of(pairs: Iterable[Pair]) -> Figures:
    """Final accuracies of the same."""
    return _known((pair.pair_key, pair.final_figures(VAL_ACCURACY)) for pair in pairs)


def _known(figures: Iterable[tuple[str, tuple[float, float] | None]]) -> Figures:
    return {key: both for key, both in figures if both is not None}


@dataclass(frozen=True)
class Row:
    """The pairs behind one row of a table."""

    pairs: Sequence[Pair]
    is_baseline: bool

    def figures(self, of: Callable[[Iterable[Pair]], Figures]) -> dict[str, float]:
        """The figure of the row's own side by pair key. The baseline's is the same in the pairs of every arm."""
        return {key: both[0 if self.is_baseline else 1] for key, both in of(self.pairs).items()}

    def timed_runs(self) -> list[Run]:
        """The uncontaminated runs whose speeds are compared, each once: of an arm with the baseline's of its pairs."""
        sides = [
            pair.baseline_runs if self.is_baseline else (*pair.baseline_runs, *pair.arm_runs)
            for pair in self.pairs
            if times_of([pair])
        ]
        return list({run.directory: run for side in sides for run in side if run.contamination is None}.values())


def figures_of_runs(runs: Sequence[Run], key: str) -> dict[str, float]:
    """The figure by pair key of runs that may be in no pair; repeats of a seed are averaged, as they are in pairs."""
    values: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if (value := run.figure(key)) is not None:
            values[run.pair_key].append(value)
    return {key: statistics.fmean(repeats) for key, repeats in values.items()}


def baseline_there(pairs: Sequence[Pair], all_pairs: Sequence[Pair]) -> BaselineThere | None:
    """The baseline's figures in an arm's `pairs`, as far as those behind its own row (`all_pairs`) are others."""

    def in_these_alone(of: Callable[[Iterable[Pair]], Figures]) -> list[float]:
        here, everywhere = (Row(some, is_baseline=True).figures(of) for some in (pairs, all_pairs))
        is_same = here.keys() == everywhere.keys() or len(set(everywhere.values())) == 1
        return [] if is_same else list(here.values())

    times, peaks = in_these_alone(times_of), in_these_alone(peaks_of)
    losses, shares = in_these_alone(losses_of), in_these_alone(accuracies_of)
    if not any((times, peaks, losses, shares)):
        return None
    return BaselineThere(
        step_ms=geometric_mean(times),
        peak_memory_bytes=statistics.fmean(peaks) * GIB if peaks else None,
        val_loss=statistics.fmean(losses) if losses else None,
        val_accuracy=statistics.fmean(shares) if shares else None,
    )
