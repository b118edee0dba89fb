"""`python train.py`: plan, check, hand over to Hydra, compare.

Reports are imported once there is something to report: their statistics take a fifth of a second, before any training.
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType

import hydra

from ampsweep.commands.arguments import Arguments, parse, quoted
from ampsweep.commands.dry_run import print_plan
from ampsweep.commands.hydra_job import Job
from ampsweep.config.compose import CONFIG_NAME, Points, compose_points, conf_dir
from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash, run_directory_name
from ampsweep.config.schema import Config, TrackingConfig
from ampsweep.launch.garbage_collection import collector_at_rest, resume_collector
from ampsweep.launch.isolated import run_isolated, warm_up
from ampsweep.record import RunRecord, find_records
from ampsweep.record.outcome import ALL_ENDED, SOME_FAILED, WRONG_INPUT, exit_code
from ampsweep.redaction import hide
from ampsweep.report.terminal import Terminal
from ampsweep.report.wandb.send_comparison import publish_after
from ampsweep.run.directories import existing_multirun, finished_hashes, new_directory, unfinished_run
from ampsweep.run.request import RunRequest
from ampsweep.sweep.checked import CHECK_POINTS, Checked
from ampsweep.sweep.comparison import GrowingComparison
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.sweep.progress.workers import watch
from ampsweep.tracking.wandb.agent import agent_overrides, is_agents_run
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 outcomes, 1 failed or interrupted, 2 wrong input)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if is_agents_run():
        arguments = agent_overrides(arguments)
    try:
        with sigterm_as_interrupt(), collector_at_rest():
            return _run(parse(arguments, CONFIG_NAME), arguments)
    except UserError as error:
        print(f"error: {hide(str(error))}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return SOME_FAILED


def _run(arguments: Arguments, argv: Sequence[str]) -> int:
    if arguments.for_hydra:
        _call_hydra(Job(), argv, arguments.config_name)
        return ALL_ENDED
    points = compose_points(
        arguments.overrides,
        multirun=arguments.multirun,
        config_name=arguments.config_name,
        on_multirun=partial(warm_up, ["ampsweep.commands.fork_server"]),
    )
    return run_points(points, arguments.config_name)


def run_points(points: Points, config_name: str = CONFIG_NAME) -> int:
    """Train all of them; the exit code."""
    run = _multirun if points.multirun else _single
    with _wandb_process(points) as wandb:  # starts now, beside all that follows
        return run(points, config_name, wandb)


def _wandb_process(points: Points) -> AbstractContextManager[WandbProcess | None]:
    configs = [point.config for point in points.points if not point.config.dry_run]
    tracked: list[TrackingConfig] = []
    for config in configs:
        if config.tracking.mode != "disabled" and config.tracking not in tracked:
            tracked.append(config.tracking)
    return WandbProcess(tracked) if tracked else nullcontext()


def _single(points: Points, config_name: str, wandb: WandbProcess | None) -> int:
    # torch is imported here and not above: the parent of a sweep does without it.
    from ampsweep.launch.device_lock import device_lock
    from ampsweep.sweep.single import SingleRun
    from ampsweep.training.build.device import resolve_device

    config = points.points[0].config
    if config.max_batch.search:
        raise UserError("max_batch.search=true: only a multirun can search, as each probe has its own process; add -m")
    if config.into is not None:
        raise UserError(f"into={config.into}: only a multirun can be extended; add -m")
    if config.dry_run:
        return print_plan([config], _checked([config]), Terminal())
    device = resolve_device(config.device)
    plan = Plan(points.points)
    with ProgressDisplay(plan, in_training_process=True) as display, device_lock(str(device), on_wait=display.say):
        directory, resume = _resumed(config, display)
        address = None if wandb is None else wandb.address
        run = SingleRun(config, device, resume, address)
        directory = directory or new_directory(config) / run_directory_name(config)

        def train(request: RunRequest) -> None:
            if run.too_large is not None:
                display.say(run.too_large)
            display.run_begins(config)
            run.train(request, display.on_message)

        if address is not None:
            address.prepare(config.tracking)
        overrides = [*points.calls[0], _set("hydra.run.dir", directory)]
        _call_hydra(Job(single=train, wandb=address), overrides, config_name)
    from ampsweep.report.run_summary import print_run_summary

    record = RunRecord.read(directory)
    print_run_summary(directory, record, Terminal())
    return exit_code(record.status)


def _resumed(config: Config, display: ProgressDisplay) -> tuple[Path | None, Path | None]:
    """The directory to go on in (None: a new one) and what to resume from (None: nothing)."""
    if config.resume is None:
        return None, None
    if config.resume != "auto":
        return None, Path(config.resume).expanduser()
    directory = unfinished_run(config, display.say)
    display.say(
        "resume=auto: no unfinished run of this config; starting afresh"
        if directory is None
        else f"resuming {directory}"
    )
    return directory, directory


def _multirun(points: Points, config_name: str, wandb: WandbProcess | None) -> int:
    configs = [point.config for point in points.points]
    first = configs[0]
    if first.resume is not None:
        raise UserError(f"resume={first.resume}: a multirun is continued with into=DIRECTORY")
    into = None if first.into is None else existing_multirun(first.into)
    for error in () if into is None else find_records(into).unreadable:
        print(f"into={first.into}: {error}; its point counts as not run", file=sys.stderr)
    address = None if wandb is None else wandb.address
    checked = _checked(configs, address)
    if first.dry_run:
        return print_plan(configs, checked, Terminal(), into)
    directory = into or new_directory(first)
    where = ("hydra.mode=MULTIRUN", _set("hydra.sweep.dir", directory))
    resume_collector()
    plan = Plan(points.points, () if into is None else finished_hashes(into), all_known=points.all_known)
    with ProgressDisplay(plan) as display, watch(points, directory, display):
        growing, interrupted = GrowingComparison(directory, first, display.compare), False
        for one in checked:
            if one.too_large is not None:
                display.say(one.too_large)
        try:
            num_points = 0 if plan.num_runs is None else len(plan.runs)
            job = Job(display, wandb=address, after_run=growing.rewrite, num_points=num_points)
            for call in points.calls:
                _call_hydra(job, ["--multirun", *call, *where], config_name)
        except KeyboardInterrupt:
            interrupted = True
    left = find_records(directory)
    if interrupted and into is None and not (left.records or left.unreadable):
        shutil.rmtree(directory)  # nothing has come of it
        return SOME_FAILED
    if left.records:
        _show(growing, directory)
        if address is not None and (line := publish_after(directory, growing.dashboard, growing.records, address)):
            print(line, file=sys.stderr)
    all_ended = {config_hash(config) for config in configs} <= finished_hashes(directory)
    return ALL_ENDED if all_ended and not interrupted else SOME_FAILED


def _checked(configs: Sequence[Config], wandb: WandbAddress | None = None) -> list[Checked]:
    """The checks that need torch, in a child; the first problem ends everything before it starts."""
    checked = run_isolated(CHECK_POINTS, (configs, wandb)).unpacked()
    for one in checked:
        if one.problem is not None:
            raise UserError(one.problem)
    return checked


def _show(growing: GrowingComparison, directory: Path) -> None:
    from ampsweep.report.console import print_comparison

    console = Terminal()
    print_comparison(growing.write(), console)
    console.print(f"\n{directory / 'comparison.html'}\n{directory / 'comparison.md'}", soft_wrap=True)


def _call_hydra(job: Job, argv: Sequence[str], config_name: str) -> None:
    """Let Hydra run `job` on this command line; the points were composed before, so nothing is left to refuse."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions as they are, not Hydra's rendering of them
    before = sys.argv
    sys.argv = [before[0], *argv]
    try:
        hydra.main(config_path=str(conf_dir()), config_name=config_name, version_base="1.3")(job)()
    finally:
        sys.argv = before


def _set(key: str, value: Path) -> str:
    return f"{key}={quoted(str(value))}"


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM between two runs ends the sweep as Ctrl-C does: with its comparison so far."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
