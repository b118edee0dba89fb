"""`ampsweep sweep`: train the points of a sweep file, each in its own process, without a W&B server."""

import re
from argparse import Namespace
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from ampsweep.commands.compare import run_commands
from ampsweep.commands.multirun import start_processes
from ampsweep.commands.train import train_points
from ampsweep.config.compose import Points, compose_each
from ampsweep.config.errors import UserError
from ampsweep.config.overrides import check_effect
from ampsweep.config.sweep_file import SweepFile, read_sweep
from ampsweep.launch.garbage_collection import paused_garbage_collection
from ampsweep.launch.signal_handlers import stop_signals_as_interrupt
from ampsweep.sweep.script_sweep import is_of_suite, script_points

_OF_SCRIPTS = ("arm_key", "seed_key", "metric", "goal", "baseline")


def sweep_command(arguments: Namespace) -> int:
    """Run the points of a sweep file of train.py, as `python train.py -m` would, or of any other program; return the
    exit code. UserError: wrong input; nothing was run.
    """
    if arguments.count is not None and arguments.count < 1:
        raise UserError(f"--count {arguments.count}: must be at least 1")
    try:
        sweep = read_sweep(arguments.file)
        if not is_of_suite(sweep):
            return _run_scripts(sweep, arguments)
        with stop_signals_as_interrupt(), paused_garbage_collection():
            points = _composed(sweep, arguments)
    except UserError as error:
        raise UserError(f"{arguments.file}: {error}") from error
    with stop_signals_as_interrupt(), paused_garbage_collection():
        return train_points(points)


def _composed(sweep: SweepFile, arguments: Namespace) -> Points:
    if given := [key for key in _OF_SCRIPTS if getattr(arguments, key) is not None]:
        option = f"--{given[0].replace('_', '-')}"
        raise UserError(f"{option}: is for sweeps of other programs than train.py, whose arms are `precision`")
    overrides = sweep.overrides(arguments.overrides, arguments.count)
    start_processes()
    composed = compose_each(overrides)
    check_effect([point.config for point in composed.points], dict.fromkeys(chain(*overrides)))
    return composed


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
