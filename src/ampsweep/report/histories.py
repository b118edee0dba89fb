"""The histories of runs as curves, thinned for a page without hiding a spike."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
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
_MAX_WHOLE: Final = 1e15
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
        num_stretches = max(max_points // (2 if is_finite.all() else 3), 1)
        finite, gap = (_stretches(mask, num_stretches, False) for mask in (is_finite, ~is_finite))
        lowest = _stretches(np.where(is_finite, self.values, np.inf), num_stretches, np.inf).argmin(axis=1)
        highest = _stretches(np.where(is_finite, self.values, -np.inf), num_stretches, -np.inf).argmax(axis=1)
        has_finite, has_gap = finite.any(axis=1), gap.any(axis=1)
        first = np.arange(len(finite)) * finite.shape[1]
        at = [(first + lowest)[has_finite], (first + highest)[has_finite], (first + gap.argmax(axis=1))[has_gap]]
        kept = np.unique(np.concatenate(at))
        return Curve(self.steps[kept], self.values[kept])


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
    columns = {key: _column(history.rows, key) for key in keys}
    for key, values in columns.items():
        if (line := _wrong_line(values)) is not None:
            return RunCurves({}, missing=f"is damaged: line {line} has no number at {key}")
    last_step = history.rows[-1][STEP] if history.rows else None
    return RunCurves(_curves(history.rows, columns), is_torn=history.is_torn, last_step=last_step)


_NOT_THERE: Final = "is not there"


class _Absent:
    """Marks a metric that a row lacks; a row may hold null."""


_ABSENT: Final = _Absent()

Rows = Sequence[Mapping[str, Any]]


def _column(rows: Rows, key: str) -> list[Any]:
    try:
        return list(map(itemgetter(key), rows))  # a third of the time, for what every row has
    except KeyError:
        return [row.get(key, _ABSENT) for row in rows]


def _wrong_line(values: Sequence[Any]) -> int | None:
    if set(map(type, values)) <= {float, _Absent}:
        return None
    return next((line for line, value in enumerate(values, start=1) if not _is_number(value)), None)


def _is_number(value: Any) -> bool:
    read = number(value)
    return read is None or type(read) in (float, _Absent) or (type(read) is int and abs(read) < _MAX_INT)


def _curves(rows: Rows, columns: Mapping[str, list[Any]]) -> dict[str, Curve]:
    steps = np.array([row[STEP] for row in rows], dtype=np.float64)
    curves = {}
    for key, values in columns.items():
        if _ABSENT not in values:
            curves[key] = Curve(steps, _array(values))
        elif logged := [index for index, value in enumerate(values) if value is not _ABSENT]:
            curves[key] = Curve(steps[logged], _array([values[index] for index in logged]))
    return {key: curve for key, curve in curves.items() if len(curve)}


def _array(values: list[Any]) -> Array:
    if set(map(type, values)) == {float}:
        return np.array(values, dtype=np.float64)
    return np.array([math.nan if value is None else float(number(value)) for value in values], dtype=np.float64)


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
    common = usable[0]
    for steps in usable[1:]:
        if not np.array_equal(common, steps):
            common = np.intersect1d(common, steps, assume_unique=True)
    if len(common) < 2:
        return None
    values = np.stack([curve.values[np.searchsorted(curve.steps, common)] for curve in curves])
    return Band(common, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def short_numbers(values: Array) -> list[float | int | None]:
    """Numbers for JSON: integers whole, others with 5 significant digits, non-finite ones as None."""
    if (values == np.rint(values)).all() and (np.abs(values) < _MAX_WHOLE).all():  # ten times as fast, for steps
        return [*values.astype(np.int64).tolist()]
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _short(value: float) -> float | int:
    is_large = abs(value) >= 10.0 ** (_DIGITS - 1)
    short = float(round(value)) if is_large else float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < _MAX_WHOLE else short


def _stretches(values: NDArray[Any], num: int, filler: float) -> NDArray[Any]:
    """`values` as at most `num` rows of equal length, the last padded with `filler`."""
    length = -(-len(values) // num)
    filled = np.full(-(-len(values) // length) * length, filler, dtype=values.dtype)
    filled[: len(values)] = values
    return filled.reshape(-1, length)
