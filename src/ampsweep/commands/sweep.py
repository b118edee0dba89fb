"""`ampsweep sweep`: train the points of a sweep file, each in its own process, without a W&B server."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from ampsweep.commands.compare import run_commands
from ampsweep.commands.multirun import start_processes
from ampsweep.commands.train import train_points
from ampsweep.config.compose import compose_each
from ampsweep.config.errors import UserError
from ampsweep.config.overrides import check_effect
from ampsweep.config.sweep_file import SweepFile, read_sweep, sweep_points
from ampsweep.launch.garbage_collection import paused_garbage_collection
from ampsweep.launch.signal_handlers import stop_signals_as_interrupt
from ampsweep.sweep.script_sweep import is_of_suite, script_points

_OF_SCRIPTS = ("arm_key", "seed_key", "metric", "goal", "baseline")


def sweep_command(arguments: Namespace) -> int:
    """Run the points of a sweep file of train.py, or of any other program; return the exit code.

    Raises:
        UserError: wrong input; nothing was run.
    """
    if arguments.count is not None and arguments.count < 1:
        raise UserError(f"--count {arguments.count}: must be at least 1")
    try:
        sweep = read_sweep(arguments.file)
        if not is_of_suite(sweep):
            return _run_scripts(sweep, arguments)
    except UserError as error:
        raise UserError(f"{arguments.file}: {error}") from error
    if given := [key for key in _OF_SCRIPTS if getattr(arguments, key) is not None]:
        option = f"--{given[0].replace('_', '-')}"
        raise UserError(f"{option}: is for sweeps of other programs than train.py, whose arms are `precision`")
    return run_sweep(arguments.file, arguments.overrides, arguments.count)


def _run_scripts(sweep: SweepFile, arguments: Namespace) -> int:
    for override in arguments.overrides:
        if not re.match("into=.", override):
            raise UserError(f"{override}: with a program other than train.py only into=DIR; parameters are in the file")
    into = next((Path(override.removeprefix("into=")) for override in reversed(arguments.overrides)), None)
    points = script_points(sweep, arguments.count, arguments.arm_key or (), arguments.seed_key)
    metric = sweep.content.get("metric")
    if arguments.metric is None and isinstance(metric, Mapping):
        arguments.metric, arguments.goal = metric.get("name"), arguments.goal or metric.get("goal")
    experiment = str(sweep.content.get("name") or Path(sweep.program or arguments.file).stem)
    return run_commands(points, arguments, into, experiment)


def run_sweep(file: Path, overrides: Sequence[str], count: int | None) -> int:
    """Train every point of the sweep in `file` with `overrides`, as `python train.py -m` would; return the exit code.

    Raises:
        UserError: the file is no sweep that can run here, or a point is wrong.
    """
    with stop_signals_as_interrupt(), paused_garbage_collection():
        try:
            points = points_of(file, overrides, count)
            start_processes()
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
