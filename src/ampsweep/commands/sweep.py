"""`ampsweep sweep`: the points of a sweep file, each in a process of its own, without a W&B server."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ampsweep.commands.multirun import start_processes
from ampsweep.commands.train import train_points
from ampsweep.config.compose import compose_each
from ampsweep.config.errors import UserError
from ampsweep.config.overrides import check_effect
from ampsweep.config.sweep_file import sweep_points
from ampsweep.launch.garbage_collection import paused_garbage_collection
from ampsweep.launch.signals import stop_signals_as_interrupt


def run_sweep(file: Path, overrides: Sequence[str], count: int | None) -> int:
    """Train every point of the sweep in `file` with `overrides`, as `python train.py -m` would; the exit code.

    Raises:
        UserError: the file is no sweep that can be run here, or one of its points is wrong.
    """
    with stop_signals_as_interrupt(), paused_garbage_collection():
        points = points_of(file, overrides, count)
        start_processes()
        try:
            composed = compose_each(points)
            check_effect([point.config for point in composed.points], dict.fromkeys(chain(*points)))
        except UserError as error:
            raise UserError(f"{file}: {error}") from error
        return train_points(composed)


def points_of(file: Path, overrides: Sequence[str], count: int | None = None) -> list[tuple[str, ...]]:
    """List the points of the sweep in `file` with `overrides`; an override of a key that the sweep varies leaves fewer.

    Raises:
        UserError: the file is no sweep that can be run here.
    """
    return list(dict.fromkeys(_with(point, overrides) for point in sweep_points(file, count)))


def _with(point: Sequence[str], overrides: Sequence[str]) -> tuple[str, ...]:
    """Merge a point's overrides with those of the command line, which replace the point's own for the same key."""
    return tuple({override.partition("=")[0]: override for override in (*point, *overrides)}.values())
