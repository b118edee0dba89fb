"""`python train.py`: read the command line, check its runs, train them, and show the results. Reports are imported only
when there are results, because their statistics take 0.2 s to import."""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from omegaconf import OmegaConf

from ampsweep.commands.arguments import parse, taken_out
from ampsweep.commands.entry import ended
from ampsweep.commands.hydra_job import PREDICT_POINT, PREDICT_RUN, hand_over, run_one
from ampsweep.commands.multirun import start_processes, train_all
from ampsweep.config.compose import Point, Points, compose_points, refusing
from ampsweep.config.errors import UserError
from ampsweep.config.identity import run_directory_name
from ampsweep.config.overrides import check_effect
from ampsweep.config.schema import Config
from ampsweep.launch.forked_call import call_in_fork
from ampsweep.launch.garbage_collection import paused_garbage_collection
from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.launch.isolated_process import ChildError, ChildExit, run_isolated
from ampsweep.launch.signal_handlers import StopRequest, stop_signals_as_interrupt
from ampsweep.launch.watchdog import STACKS_BEGIN
from ampsweep.parallel.rank_environment import RankPlace, place_in
from ampsweep.records import RunRecord
from ampsweep.records.outcome import ALL_ENDED, SOME_FAILED, Status, exit_code
from ampsweep.report.console import Terminal
from ampsweep.report.data_formats import CONSOLE, formats, put_out
from ampsweep.run.directories import new_directory, resumed_run
from ampsweep.run.failure import ERROR_NAME, RunFailedError, failed, kept_error
from ampsweep.run.isolated_run import complete_record, run_in_own_process
from ampsweep.run.request import RunRequest
from ampsweep.socket_folder import socket_folder
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.preflight import Checked, check_existence, checked_with_wandb, preflight
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.text import one_line
from ampsweep.tracking.wandb.agent import agent_overrides, is_agents_run
from ampsweep.tracking.wandb.process import WandbProcess

_JOIN: Final = NamedFunction[Status]("ampsweep.run.rank:run_rank")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code (0 outcomes, 1 failed or interrupted, 2 wrong input)."""
    given = sys.argv[1:] if argv is None else list(argv)
    return ended(lambda: _main(given), given)


def _main(argv: Sequence[str]) -> int:
    given = agent_overrides(argv) if is_agents_run() else argv
    with stop_signals_as_interrupt(), paused_garbage_collection():
        rest, chosen = taken_out(given, "format", formats())
        arguments = parse(rest)
        if arguments.for_hydra:
            with refusing():
                hand_over(rest)
            return ALL_ENDED
        try:
            socket_folder()
        except OSError as error:
            raise UserError(str(error)) from error
        points = compose_points(arguments.overrides, multirun=arguments.multirun, on_multirun=start_processes)
        if not is_agents_run():  # an agent passes every key of its sweep to every point
            check_effect([point.config for point in points.points], arguments.overrides)
        return train_points(points, chosen)


def train_points(points: Points, chosen: str = CONSOLE) -> int:
    """Train all points, or show the plan in the chosen format; return the exit code."""
    if chosen != CONSOLE and not points.points[0].config.dry_run:
        raise UserError(f"format={chosen}: a training has no format; dry_run=true has, and `ampsweep report --format`")
    if (place := place_in()) is not None:
        points = _at_place(points, place)
    if not points.multirun:
        _check_alone(points.points[0].config, points.overrides)
    check_existence(point.config for point in points.points)
    is_tracked = any(point.config.tracking.mode != "disabled" for point in points.points)
    with WandbProcess() if is_tracked else nullcontext() as wandb:  # starts while the rest goes on
        return train_all(points, wandb, chosen) if points.multirun else _train_one(points, wandb, place, chosen)


def _at_place(points: Points, place: RankPlace) -> Points:
    """Set the number of processes of torchrun in the config; UserError if the command contradicts the launch."""
    if points.multirun:
        raise UserError(
            "a multirun under torchrun: each of its runs starts processes of its own; leave torchrun out, with "
            "parallel=ddp or fsdp2 and parallel.num_processes"
        )
    config, there = points.points[0].config, f"{place.world_size} processes of torchrun"
    parallel = config.parallel
    if parallel.strategy == "single":
        if place.world_size > 1:
            raise UserError(f"parallel=single with {there}: each would train by itself; use parallel=ddp or fsdp2")
        return points
    if parallel.num_processes not in (None, place.world_size):
        raise UserError(f"parallel.num_processes={parallel.num_processes} with {there}")
    OmegaConf.update(points.composed, "parallel.num_processes", place.world_size)
    config = replace(config, parallel=replace(parallel, num_processes=place.world_size))
    return replace(points, points=(Point(points.overrides, config),))


def _check_alone(config: Config, overrides: Sequence[str]) -> None:
    if config.report.decide and any(override.startswith("report.decide=") for override in overrides):
        raise UserError("report.decide=true: only a multirun can add seeds; add -m")
    if config.max_batch.search:
        raise UserError("max_batch.search=true: only a multirun can search, as each probe has its own process; add -m")
    if config.into is not None:
        raise UserError(f"into={config.into}: only a multirun can be extended; add -m")


def _train_one(points: Points, wandb: WandbProcess | None, place: RankPlace | None, chosen: str) -> int:
    config = points.points[0].config
    if config.dry_run:
        from ampsweep.commands.dry_run import plan_document

        with checked_with_wandb([config], None if wandb is None else wandb.address):
            checked = preflight([config])
        put_out(plan_document([config], checked), chosen)
        return ALL_ENDED
    if config.parallel.strategy != "single":
        return _train_on_ranks(points, wandb, place)
    begun: list[object] = []

    def train(send: Callable[[object], None]) -> int:
        return ended(lambda: _train_here(points, wandb, send), points.overrides)

    lost = call_in_fork(train, begun.append)
    return lost.result if lost.result is not None else _complete(begun, lost)


def _complete(begun: Sequence[object], lost: ChildExit[int]) -> int:
    """Complete the record of a run whose process died, if the run had begun."""
    lost.raise_interrupt()
    if not begun:
        raise ChildError(f"the process of the run {lost.sentence}")
    [request] = begun
    assert isinstance(request, RunRequest)
    is_reported = (kept := kept_error(request.directory)) and not kept.startswith(STACKS_BEGIN)
    record, place = complete_record(request, lost), request.directory
    Terminal(stderr=True).show_cursor()  # the progress display has hidden it
    if record.status == "failed" and not is_reported:
        raise RunFailedError(f"{place.name} failed: {record.error}; its error in full: {place / ERROR_NAME}")
    return exit_code(record.status) if is_reported else _show_run(place)


def _train_here(points: Points, wandb: WandbProcess | None, send: Callable[[object], None]) -> int:
    # torch is imported only here: the parent of a sweep does not need it.
    from ampsweep.run.lifecycle import run_prepared
    from ampsweep.sweep.preflight_checks import check_checkpoint, check_single_run
    from ampsweep.training.components.device import taken_device

    config, plan = points.points[0].config, Plan(points.points)
    with ProgressDisplay(plan, in_training_process=True) as display, taken_device(config.device, display.say) as taken:
        directory, resume = resumed_run(config, display.say)
        with checked_with_wandb([config], None if wandb is None else wandb.address):
            prepared, checked = check_single_run(config, taken)
        if resume is not None:
            check_checkpoint(config, resume)
        request = _request(config, directory, resume, wandb, checked, display)
        directory = request.directory

        def train() -> None:
            try:
                (directory / ERROR_NAME).unlink(missing_ok=True)  # of an earlier attempt
                send(request)
                with StopRequest() as stop:
                    run_prepared(request, prepared, send=display.on_message, stop=stop)
            except (Exception, SystemExit) as error:  # the user's own code may raise anything
                raise failed(error, f"{directory.name} failed: {one_line(error)}", directory, config) from error

        display.run_begins(config)
        run_one(points.composed, directory, train)
    return _show_run(directory)


def _train_on_ranks(points: Points, wandb: WandbProcess | None, place: RankPlace | None) -> int:
    if place is not None and place.rank > 0:  # rank 0 checks, prints and records
        joined = run_isolated(_JOIN, (None,))
        return SOME_FAILED if joined.result is None else exit_code(joined.result)
    config = points.points[0].config
    with checked_with_wandb([config], None if wandb is None else wandb.address):
        [checked] = preflight([config])
    if checked.unsupported is not None:
        raise UserError(checked.unsupported)
    with ProgressDisplay(Plan(points.points)) as display:
        directory, resume = resumed_run(config, display.say)
        if resume is not None and not config.begins_elsewhere:  # otherwise the preflight has checked it
            from ampsweep.sweep.preflight_checks import check_checkpoint  # imports torch

            check_checkpoint(config, resume)
        request = _request(config, directory, resume, wandb, checked, display)

        def train() -> None:
            with suppress(KeyboardInterrupt):  # the record says that it was interrupted
                run_in_own_process(request, display)

        run_one(points.composed, request.directory, train)
    return _show_run(request.directory)


def _request(
    config: Config,
    directory: Path | None,
    resume: Path | None,
    wandb: WandbProcess | None,
    checked: Checked,
    display: ProgressDisplay,
) -> RunRequest:
    """Make the request for the run; `directory` is that of the run it resumes, if any."""
    directory = directory or new_directory(config) / run_directory_name(config)
    if checked.too_large is not None:
        display.say(checked.too_large)
    address, in_sweep = None if wandb is None else wandb.address, is_agents_run()
    return RunRequest(
        config,
        directory,
        group=config.tracking.group,
        checkpoint=resume,
        wandb=address,
        predictor=PREDICT_POINT if in_sweep else PREDICT_RUN,
        in_sweep=in_sweep,
    )


def _show_run(directory: Path) -> int:
    from ampsweep.report.run_summary import run_document

    record = RunRecord.read(directory)
    put_out(run_document(directory, record))
    return exit_code(record.status)
