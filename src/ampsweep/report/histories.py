"""The histories of runs as curves, thinned for a page without hiding a spike."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ampsweep.analysis.comparison import FileProblem, FileProblemKind
from ampsweep.analysis.figure_keys import VAL_LOSS
from ampsweep.analysis.time_to_loss import TRAIN_LOSS, MetricSeries
from ampsweep.metrics import STEP
from ampsweep.records import HISTORY_NAME, RecordError, RunRecord, load_history, number

Array = NDArray[np.float64]

_DIGITS: Final = 5  # significant digits of a point
_MAX_INT: Final = 2**63


class Curve(MetricSeries):
    """A metric's values by step."""

    def __len__(self) -> int:
        return len(self.steps)

    def thinned(self, max_points: int) -> "Curve":
        """At most `max_points` points: the lowest and highest value of each stretch of steps, at their own steps.

        A stretch with non-finite values keeps one of them, so that a gap stays a gap.
        """
        if len(self) <= max_points:
            return self
        is_finite = np.isfinite(self.values)
        kept = set[int]()
        for stretch in np.array_split(np.arange(len(self)), max(max_points // (2 if is_finite.all() else 3), 1)):
            kept.update(stretch[~is_finite[stretch]][:1].tolist())
            if (finite := stretch[is_finite[stretch]]).size:
                values = self.values[finite]
                kept.update((int(finite[values.argmin()]), int(finite[values.argmax()])))
        places = sorted(kept)
        return Curve(self.steps[places], self.values[places])


@dataclass(frozen=True)
class Band:
    """The mean, lowest and highest value of several curves, at the steps that all of them have."""

    steps: Array
    mean: Array
    low: Array
    high: Array

    def thinned(self, max_points: int) -> "Band":
        """At most `max_points` points: the mean, the lowest low and the highest high of each stretch of steps."""
        if len(self.steps) <= max_points:
            return self
        first = np.arange(max_points) * len(self.steps) // max_points
        sizes = np.diff(np.append(first, len(self.steps)))
        return Band(
            np.add.reduceat(self.steps, first) / sizes,
            np.add.reduceat(self.mean, first) / sizes,
            np.minimum.reduceat(self.low, first),
            np.maximum.reduceat(self.high, first),
        )


@dataclass(frozen=True)
class Histories:
    curves: Mapping[Path, Mapping[str, Curve]]
    """Run directory -> metric key -> curve; keys that the run never logged are absent."""
    omissions: tuple[FileProblem, ...] = ()  # files that could not be read completely, and losses that are not finite
    partial: frozenset[Path] = frozenset()
    """Run directories whose curves lack rows: they are drawn, but no figure is computed from them."""


@dataclass(frozen=True)
class RunCurves:
    curves: dict[str, Curve]
    missing: str | None = None  # the reason why there is no usable history: a clause that follows its path
    is_torn: bool = False  # the file ends within a line
    last_step: int | None = None  # the step of its last row, if any


def read_histories(
    records: Iterable[tuple[Path, RunRecord]], keys: Iterable[str], *, metric: str = VAL_LOSS
) -> Histories:
    """The curves of `keys` of all runs, that of `metric` under `val/loss`; each directory is read once."""
    wanted = tuple(dict.fromkeys((*keys, metric)))
    curves: dict[Path, dict[str, Curve]] = {}
    omissions: list[FileProblem] = []
    partial: set[Path] = set()
    for directory, record in dict(records).items():
        found = read_curves(directory, wanted, record.history_digest)
        if metric != VAL_LOSS:
            found.curves.pop(VAL_LOSS, None)
            if metric in found.curves:
                found.curves[VAL_LOSS] = found.curves[metric]
        curves[directory] = found.curves
        path = (directory / HISTORY_NAME).as_posix()
        for kind, reason in _omissions(found, record, metric):
            omissions.append(FileProblem(path=path, name=kind, reason=reason))
            if kind == "damaged history":
                partial.add(directory)
    return Histories(curves, tuple(omissions), frozenset(partial))


def read_curves(directory: Path, keys: Sequence[str], digest: str | None = None) -> RunCurves:
    """The curves of `keys` from the history in a run's directory; a key the run never logged is absent."""
    try:
        history = load_history(directory, digest)
    except FileNotFoundError:
        return RunCurves({}, missing=_NOT_THERE)
    except RecordError as error:
        return RunCurves({}, missing=error.reason)
    try:
        curves = {key: curve for key in keys if len(curve := _curve(history.rows, key))}
    except ValueError as error:
        return RunCurves({}, missing=f"is damaged: {error}")
    last_step = history.rows[-1][STEP] if history.rows else None
    return RunCurves(curves, is_torn=history.is_torn, last_step=last_step)


_NOT_THERE: Final = "is not there"


def _curve(rows: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """The values of a metric in the rows that have it; null is a gap. Raises ValueError for anything but numbers."""
    steps, values = [], []
    for line, row in enumerate(rows, start=1):
        if key in row:
            value = row[key]
            if type(value) is not float:
                value = math.nan if value is None else number(value)
                if type(value) is int and abs(value) < _MAX_INT:
                    value = float(value)
                if type(value) is not float:
                    raise ValueError(f"line {line} has no number at {key}")
            steps.append(row[STEP])
            values.append(value)
    return Curve(np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


def _omissions(found: RunCurves, record: RunRecord, metric: str) -> Iterator[tuple[FileProblemKind, str]]:
    """The faults of a run's history. A run that never began needs none; that of a killed run may end anywhere."""
    if found.missing is not None:
        if record.attempts or found.missing != _NOT_THERE:
            yield "no history", found.missing
        return
    is_completed = record.status == "completed"
    if is_completed and record.source != "wandb" and (early_end := _early_end(found, record)) is not None:
        yield "damaged history", early_end
    for key in (TRAIN_LOSS, VAL_LOSS):
        curve = found.curves.get(key)
        if is_completed and curve is not None and not (finite := np.isfinite(curve.values)).all():
            name = metric if key == VAL_LOSS else key
            first = int(curve.steps[np.argmin(finite)])
            gaps = len(curve) - int(finite.sum())
            yield "not finite", f"has no finite {name} in {gaps} of {len(curve)} rows, first at step {first}"


def _early_end(found: RunCurves, record: RunRecord) -> str | None:
    """The reason why a completed run's history ends too early, if it does: its last step is always logged, unless the
    run continued from a checkpoint of that step."""
    steps = record.identity.steps
    if found.is_torn:
        return "ends within a line"
    if found.last_step is None:
        began_at = 0 if record.origin is None else record.origin.from_step or 0
        return None if steps is not None and began_at >= steps else "has no row"
    is_early = record.cut_short is None and steps is not None and found.last_step < steps
    return f"ends at step {found.last_step} of {steps}" if is_early else None


def band(curves: Sequence[Curve]) -> Band | None:
    """The band of at least two curves; None if they share fewer than two steps with finite values."""
    if len(curves) < 2:
        return None
    usable = [curve.steps[np.isfinite(curve.values)] for curve in curves]
    common = reduce(np.intersect1d, usable)
    if len(common) < 2:
        return None
    values = np.stack([curve.values[np.searchsorted(curve.steps, common)] for curve in curves])
    return Band(common, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def short_numbers(values: Array) -> list[float | int | None]:
    """Numbers for JSON: integers whole, others with 5 significant digits, non-finite ones as None."""
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> float | int:
    short = round(value) if abs(value) >= 10.0 ** (_DIGITS - 1) else float(f"{value:.{_DIGITS}g}")
    return int(short) if short == int(short) else short
