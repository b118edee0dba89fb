"""One training on several ranks: `python train.py parallel=ddp ...` starts them, and torchrun has started them."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from omegaconf import DictConfig

from ampsweep.commands.arguments import quoted
from ampsweep.commands.hydra_job import hand_over, keep_hydra_files, request_of
from ampsweep.config.compose import Point, Points
from ampsweep.config.errors import UserError
from ampsweep.config.identity import run_directory_name
from ampsweep.launch.child import NamedFunction
from ampsweep.launch.isolated import run_isolated
from ampsweep.parallel.place import RankPlace, place_in
from ampsweep.record import RunRecord
from ampsweep.record.outcome import SOME_FAILED, Status, exit_code
from ampsweep.report.data_formats import put_out
from ampsweep.run.directories import new_directory, resumed_run
from ampsweep.run.own_process import run_in_own_process
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.preflight import preflight
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.tracking.wandb.process import WandbProcess

_JOIN: Final = NamedFunction[Status]("ampsweep.run.rank:join_run")


def launched_place() -> RankPlace | None:
    """The place of this process among those of a launcher; None if none has started it.

    Raises:
        UserError: the launcher's variables contradict each other.
    """
    try:
        return place_in()
    except ValueError as error:
        raise UserError(str(error)) from error


def with_world_size(points: Points, place: RankPlace | None) -> Points:
    """Add to a training on ranks what a launcher has settled: the number of processes."""
    config, overrides = points.points[0].config, points.points[0].overrides
    parallel = config.parallel
    if place is None or points.multirun or parallel.strategy == "single" or parallel.num_processes is not None:
        return points
    overrides = (*overrides, f"parallel.num_processes={place.world_size}")
    config = replace(config, parallel=replace(parallel, num_processes=place.world_size))
    return replace(points, points=(Point(overrides, config),), calls=(overrides,))


def check_place(points: Points, place: RankPlace | None) -> None:
    """Compare a command with the launch that it is a part of.

    Raises:
        UserError: they contradict each other, or it is a multirun, which cannot run within one launch.
    """
    if place is None:
        return
    if points.multirun:
        raise UserError(
            "a multirun under torchrun: each of its runs starts processes of its own; leave torchrun out, with "
            "parallel=ddp or fsdp2 and parallel.num_processes"
        )
    config = points.points[0].config
    there = f"{place.world_size} processes of torchrun"
    if config.parallel.strategy == "single":
        if place.world_size > 1:
            raise UserError(f"parallel=single with {there}: each would train by itself; use parallel=ddp or fsdp2")
        return
    if config.parallel.num_processes not in (None, place.world_size):
        raise UserError(f"parallel.num_processes={config.parallel.num_processes} with {there}")


def train_on_ranks(points: Points, config_name: str, wandb: WandbProcess | None) -> int:
    """Train the one run of a command on its ranks; returns the exit code.

    Raises:
        UserError: the input is wrong; nothing was trained.
    """
    config, place = points.points[0].config, launched_place()
    if place is not None and place.rank > 0:  # the first one checks, speaks and records
        ended = run_isolated(_JOIN, ())
        return SOME_FAILED if ended.result is None else exit_code(ended.result)
    address = None if wandb is None else wandb.address
    [checked] = preflight([config], address)
    if checked.unsupported is not None:
        raise UserError(checked.unsupported)
    with ProgressDisplay(Plan(points.points)) as display:
        directory, resume = resumed_run(config, display.say)
        if resume is not None and not config.begins_elsewhere:  # else it is checked already
            # They import torch, which this process can spare.
            from ampsweep.run.rank import num_processes
            from ampsweep.sweep.preflight_checks import check_checkpoint

            number = num_processes(config.parallel, config.device) if place is None else place.world_size
            check_checkpoint(config, resume, number)
        directory = directory or new_directory(config) / run_directory_name(config)
        if checked.too_large is not None:
            display.say(checked.too_large)
        interrupts: list[KeyboardInterrupt] = []

        def job(composed: DictConfig) -> None:
            request = request_of(composed, resume, address)
            keep_hydra_files(composed, request.directory)
            try:
                run_in_own_process(request, display)
            except KeyboardInterrupt as interrupt:
                interrupts.append(interrupt)

        hand_over(job, [*points.calls[0], f"hydra.run.dir={quoted(str(directory))}"], config_name)
    code = show_run(directory)
    return SOME_FAILED if interrupts else code


def show_run(directory: Path) -> int:
    """Show what became of the run of a command; returns the exit code."""
    from ampsweep.report.run_summary import run_document

    record = RunRecord.read(directory)
    put_out(run_document(directory, record))
    return exit_code(record.status)
