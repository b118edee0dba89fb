"""`python train.py`: read the command line, check its runs, hand it over to Hydra, and show the results.

Reports are imported only once there are results, because their statistics take a fifth of a second to import.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

from omegaconf import DictConfig

from ampsweep.commands.arguments import Arguments, parse, quoted, taken_out
from ampsweep.commands.entry import ended
from ampsweep.commands.hydra_job import SweepJob, hand_over, keep_hydra_files, request_of
from ampsweep.commands.multirun import start_processes, train_all
from ampsweep.commands.ranks import check_place, launched_place, show_run, train_on_ranks, with_world_size
from ampsweep.config.compose import CONFIG_NAME, Points, compose_points, composing
from ampsweep.config.errors import UserError
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import NO_TORCHAO, step_dtypes
from ampsweep.config.overrides import check_effect
from ampsweep.config.schema import Config
from ampsweep.launch.garbage_collection import paused_garbage_collection
from ampsweep.launch.isolated import ChildError, ChildExit
from ampsweep.launch.signals import StopRequest, stop_signals_as_interrupt
from ampsweep.launch.watchdog import STACKS_BEGIN
from ampsweep.launch.watched import call_watched
from ampsweep.record.outcome import ALL_ENDED, exit_code
from ampsweep.report.data_formats import CONSOLE, formats, put_out
from ampsweep.report.terminal import Terminal
from ampsweep.run.directories import new_directory, resumed_run
from ampsweep.run.failure import ERROR_NAME, RunFailedError, failed, kept_error
from ampsweep.run.own_process import complete_record
from ampsweep.run.request import RunRequest
from ampsweep.socket_folder import socket_folder
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.preflight import check_existence, preflight
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.text import one_line
from ampsweep.tracking.wandb.agent import agent_overrides, is_agents_run
from ampsweep.tracking.wandb.process import WandbProcess


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 outcomes, 1 failed or interrupted, 2 wrong input)."""
    given = sys.argv[1:] if argv is None else list(argv)
    return ended(lambda: _main(given), given)


def _main(argv: Sequence[str]) -> int:
    arguments = agent_overrides(argv) if is_agents_run() else argv
    with stop_signals_as_interrupt(), paused_garbage_collection():
        rest, chosen = taken_out(arguments, "format", formats())
        return _run(parse(rest, CONFIG_NAME), rest, chosen)


def _run(arguments: Arguments, argv: Sequence[str], chosen: str) -> int:
    if arguments.for_hydra:
        with composing():
            hand_over(SweepJob(), argv, arguments.config_name)
        return ALL_ENDED
    try:
        socket_folder()
    except OSError as error:
        raise UserError(str(error)) from error
    points = compose_points(
        arguments.overrides,
        multirun=arguments.multirun,
        config_name=arguments.config_name,
        on_multirun=start_processes,
    )
    if points.all_known and not is_agents_run():  # an agent gives every key of its sweep to each of the points
        check_effect([point.config for point in points.points], arguments.overrides)
    return train_points(with_world_size(points, launched_place()), arguments.config_name, chosen)


def train_points(points: Points, config_name: str = CONFIG_NAME, chosen: str = CONSOLE) -> int:
    """Train all points, or show in the chosen format what would run; return the exit code."""
    if chosen != CONSOLE and not points.points[0].config.dry_run:
        raise UserError(f"format={chosen}: a training has no format; dry_run=true has, and `ampsweep report --format`")
    check_place(points, launched_place())
    if not points.multirun:
        _check_alone(points.points[0].config)
    check_existence(point.config for point in points.points)
    train = train_all if points.multirun else _train_one
    with _wandb_process(points) as wandb:  # starts now, beside all that follows
        return train(points, config_name, wandb, chosen)


def _wandb_process(points: Points) -> AbstractContextManager[WandbProcess | None]:
    configs = [point.config for point in points.points if not point.config.dry_run]
    return WandbProcess() if any(config.tracking.mode != "disabled" for config in configs) else nullcontext()


def _check_alone(config: Config) -> None:
    """Refuse what a sweep has an answer to, and a single run has none."""
    if config.max_batch.search:
        raise UserError("max_batch.search=true: only a multirun can search, as each probe has its own process; add -m")
    if config.into is not None:
        raise UserError(f"into={config.into}: only a multirun can be extended; add -m")
    if find_spec("torchao") is None and not is_agents_run():
        if "float8" in step_dtypes(config.precision).compute:
            raise UserError(NO_TORCHAO.format(f"precision={config.precision.mode}"))
        if (target := str(config.optimizer["_target_"])).startswith("torchao."):
            raise UserError(NO_TORCHAO.format(f"optimizer._target_={target}"))


def _train_one(points: Points, config_name: str, wandb: WandbProcess | None, chosen: str) -> int:
    config = points.points[0].config
    if config.dry_run:
        from ampsweep.commands.dry_run import plan_document

        put_out(plan_document([config], preflight([config])), chosen)
        return ALL_ENDED
    if config.parallel.strategy != "single":
        return train_on_ranks(points, config_name, wandb)
    begun: list[object] = []

    def train(send: Callable[[object], None]) -> int:
        return ended(lambda: _train_here(points, config_name, wandb, send), points.calls[0])

    lost = call_watched(train, begun.append)
    return lost.result if lost.result is not None else _complete(begun, lost)


def _complete(begun: Sequence[object], lost: ChildExit[int]) -> int:
    """Complete the record of a run whose process was lost, if it had begun, and return the exit code.

    Raises:
        RunFailedError, ChildError: it failed, or had not begun.
    """
    lost.raise_interrupt()
    if not begun:
        raise ChildError(f"the process of the run {lost.sentence}")
    [request] = begun
    assert isinstance(request, RunRequest)
    has_told = (kept := kept_error(request.directory)) and not kept.startswith(STACKS_BEGIN)
    record, place = complete_record(request, lost), request.directory
    Terminal(stderr=True).show_cursor()  # which a display of the progress has hidden
    if record.status == "failed" and not has_told:
        raise RunFailedError(f"{place.name} failed: {record.error}; its error in full: {place / ERROR_NAME}")
    return exit_code(record.status) if has_told else show_run(place)


def _train_here(points: Points, config_name: str, wandb: WandbProcess | None, send: Callable[[object], None]) -> int:
    # torch is imported here and not above: the parent of a sweep does without it.
    from ampsweep.run.lifecycle import run_prepared
    from ampsweep.sweep.preflight_checks import check_checkpoint, check_single_run
    from ampsweep.training.build.device import taken_device

    config, plan = points.points[0].config, Plan(points.points)
    with ProgressDisplay(plan, in_training_process=True) as display, taken_device(config.device, display.say) as taken:
        directory, resume = resumed_run(config, display.say)
        address = None if wandb is None else wandb.address
        prepared, checked = check_single_run(config, taken, address)
        if resume is not None:
            check_checkpoint(config, resume)
        directory = directory or new_directory(config) / run_directory_name(config)
        if checked.too_large is not None:
            display.say(checked.too_large)
        display.run_begins(config)
        # Kept, as Hydra would print the command line, secrets included, for one that is raised.
        failures: list[RunFailedError] = []

        def job(composed: DictConfig) -> None:
            request = request_of(composed, resume, address)
            try:
                keep_hydra_files(composed, directory)
                (directory / ERROR_NAME).unlink(missing_ok=True)  # of an earlier attempt
                send(request)
                with StopRequest() as stop:
                    run_prepared(request, prepared, send=display.on_message, stop=stop)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
                failures.append(failed(error, f"{directory.name} failed: {one_line(error)}", directory, config))
                failures[0].__cause__ = error

        hand_over(job, [*points.calls[0], f"hydra.run.dir={quoted(str(directory))}"], config_name)
        for failure in failures:
            raise failure
    return show_run(directory)
