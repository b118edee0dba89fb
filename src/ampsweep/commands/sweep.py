"""`ampsweep sweep`: train the points of a sweep file, each in its own process, without a W&B server."""

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
from ampsweep.launch.signal_handlers import stop_signals_as_interrupt


def run_sweep(file: Path, overrides: Sequence[str], count: int | None) -> int:
    """Train every point of the sweep in `file` with `overrides`, as `python train.py -m` would; return the exit code.

    Raises:
        UserError: the file is no sweep that can run here, or a point is wrong.
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
    """List the distinct points of the sweep in `file`; `overrides` replace the values of their keys.

    Raises:
        UserError: the file is no sweep that can run here.
    """
    points = [{item.partition("=")[0]: item for item in (*point, *overrides)} for point in sweep_points(file, count)]
    return list(dict.fromkeys(tuple(point.values()) for point in points))
