"""Histories as curves: read once, then thinned so that a page holds them, without hiding a spike."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampsweep.metrics import STEP
from ampsweep.record import read_history

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Values of one metric by step, in the order they were logged; non-finite where the run logged such."""

    steps: Array
    values: Array

    def __len__(self) -> int:
        return len(self.steps)

    def thinned(self, max_points: int) -> "Curve":
        """At most `max_points` points: of each stretch of steps its lowest and its highest value, at their own steps.

        A stretch with non-finite values keeps one of them too, so that a gap stays a gap.
        """
        if len(self) <= max_points:
            return self
        kept: list[int] = []
        points_each = 2 if np.isfinite(self.values).all() else 3
        for part in np.array_split(np.arange(len(self)), max(max_points // points_each, 1)):
            values = self.values[part]
            finite = part[np.isfinite(values)]
            here = set(part[~np.isfinite(values)][:1].tolist())
            if len(finite):
                here |= {int(finite[np.argmin(self.values[finite])]), int(finite[np.argmax(self.values[finite])])}
            kept += sorted(here)
        return Curve(self.steps[kept], self.values[kept])


@dataclass(frozen=True)
class Band:
    """Several runs' curves as one: their mean, lowest and highest value at the steps that all of them logged."""

    steps: Array
    mean: Array
    low: Array
    high: Array

    def thinned(self, max_points: int) -> "Band":
        """At most `max_points` points: for each stretch of steps the mean, the lowest low and the highest high."""
        if len(self.steps) <= max_points:
            return self
        parts = np.array_split(np.arange(len(self.steps)), max_points)
        return Band(
            np.array([self.steps[part].mean() for part in parts]),
            np.array([self.mean[part].mean() for part in parts]),
            np.array([self.low[part].min() for part in parts]),
            np.array([self.high[part].max() for part in parts]),
        )


def band(curves: Sequence[Curve]) -> Band | None:
    """The band of two or more curves; None where they share fewer than two steps with finite values."""
    if len(curves) < 2:
        return None
    finite = [np.isfinite(curve.values) for curve in curves]
    common = curves[0].steps[finite[0]]
    for curve, usable in zip(curves[1:], finite[1:], strict=True):
        common = np.intersect1d(common, curve.steps[usable])
    if len(common) < 2:
        return None
    values = np.stack([_at(curve, common) for curve in curves])
    return Band(common, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


@dataclass(frozen=True)
class Histories:
    """The histories of many runs."""

    curves: Mapping[Path, Mapping[str, Curve]]
    """Run directory -> metric key -> curve; a key the run never logged is absent."""
    unreadable: Mapping[Path, str]
    """Run directory -> why it has no curves."""


def read_histories(directories: Iterable[Path], keys: Iterable[str]) -> Histories:
    """The curves of `keys` of the runs in `directories`."""
    wanted = tuple(dict.fromkeys(keys))
    curves, unreadable = {}, {}
    for directory in directories:
        try:
            curves[directory] = read_curves(directory, wanted)
        except (ValueError, OSError) as error:
            unreadable[directory] = str(error)
    return Histories(curves, unreadable)


def read_curves(directory: Path, keys: Iterable[str]) -> dict[str, Curve]:
    """The curves of `keys` from the history in a run's directory; a key the run never logged is absent.

    Raises:
        ValueError: the file is no history.
    """
    wanted = tuple(keys)
    points: dict[str, tuple[list[float], list[float]]] = {key: ([], []) for key in wanted}
    try:
        for row in read_history(directory):
            step = float(row[STEP])
            for key in wanted:
                if key in row:
                    points[key][0].append(step)
                    points[key][1].append(_number(row[key]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"its history is not readable: {error}") from error
    return {key: Curve(np.array(steps), np.array(values)) for key, (steps, values) in points.items() if steps}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _at(curve: Curve, steps: Array) -> Array:
    """Values at `steps`, which the curve has; of a step logged twice the last."""
    position = np.searchsorted(curve.steps, steps, side="right") - 1
    return curve.values[position]
