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
    """List the points of the sweep in `file`; an override replaces that of its key, so that fewer points may be left.

    Raises:
        UserError: the file is no sweep that can be run here.
    """
    points = [{one.partition("=")[0]: one for one in (*point, *overrides)} for point in sweep_points(file, count)]
    return list(dict.fromkeys(tuple(point.values()) for point in points))
