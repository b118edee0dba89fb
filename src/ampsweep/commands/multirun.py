"""`python train.py -m`, once its points are known: check them all, train each in a process of its own, compare."""

import shutil
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

from ampsweep.commands.hydra_job import SweepEnded, SweepJob, run_all
from ampsweep.commands.run_watch import RunWatch
from ampsweep.commands.submitted_jobs import SubmittedJobs, refuse_queued
from ampsweep.config.compose import Points
from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.launch.garbage_collection import collect_new_garbage_only
from ampsweep.launch.processes import start_fork_server
from ampsweep.record import find_records
from ampsweep.record.outcome import ALL_ENDED, SOME_FAILED
from ampsweep.report.data_formats import put_out
from ampsweep.report.wandb.send_comparison import publish_after
from ampsweep.run.directories import existing_multirun, finished_hashes, new_directory, requeued_multirun
from ampsweep.sweep.live_comparison import LiveComparison
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.preflight import preflight
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.text import escaped
from ampsweep.tracking.wandb.process import WandbProcess


def start_processes() -> None:
    """Start the server that the runs' processes are forked from; its imports go on while the caller does."""
    start_fork_server(["ampsweep.commands.fork_server"])


def train_all(points: Points, wandb: WandbProcess | None, chosen: str) -> int:
    """Train the points of a multirun and compare them; returns the exit code.

    Raises:
        UserError: the input is wrong; nothing was trained.
    """
    configs = [point.config for point in points.points]
    first = configs[0]
    if any(config.resume == "auto" for config in configs):
        raise UserError("resume=auto: a multirun is continued with into=DIRECTORY")
    into = _begun_before(first)
    address = None if wandb is None else wandb.address
    elsewhere = points.launcher == "slurm"
    checked = preflight(configs, address, elsewhere=elsewhere)
    if first.dry_run:
        from ampsweep.commands.dry_run import plan_document

        put_out(plan_document(configs, checked, into, elsewhere=elsewhere), chosen)
        return ALL_ENDED
    directory = into or new_directory(first)
    collect_new_garbage_only()
    plan = Plan(points.points, () if into is None else finished_hashes(into), all_known=points.all_known)
    jobs = SubmittedJobs(directory) if elsewhere else None
    interrupted, goes_on_alone = False, None
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay(plan))
        comparison = LiveComparison(directory, first, display.compare)
        if points.launcher != "here":
            stack.enter_context(RunWatch(directory, configs, display, jobs, comparison.rewrite))
        for one in checked:
            if one.too_large is not None:
                display.say(one.too_large)
        try:
            with nullcontext() if jobs is None else jobs.waited_for():
                run_all(points, directory, SweepJob(display, wandb=address, after_run=comparison.rewrite))
        except KeyboardInterrupt:
            interrupted = True
            goes_on_alone = None if jobs is None else jobs.left()
            if goes_on_alone is not None:
                display.say(goes_on_alone)
        except (SweepEnded, OSError) as end:  # of a run's files, of Hydra's own
            interrupted = True
            reason = f"{end.filename or directory}: {end.strerror}" if isinstance(end, OSError) else str(end)
            goes_on = f", and into={directory} goes on with it" if find_records(directory).records else ""
            display.say(f"{reason}; the sweep ends here{goes_on}")
    left = find_records(directory)
    if address is not None and not interrupted:
        from ampsweep.tracking.wandb.sync_run import send_lost  # only here: no start of a sweep waits for it

        _tell(send_lost(directory, [path for path, _ in left.records], address))
    if interrupted and into is None and goes_on_alone is None and not (left.records or left.unreadable):
        shutil.rmtree(directory)  # nothing has come of it
        return SOME_FAILED
    if left.records:
        put_out(comparison.write())
        if comparison.unwritten is None:
            print(escaped(f"\n{directory / 'comparison.html'}\n{directory / 'comparison.md'}", keeps="\n"))
        else:
            print(f"the comparison's files are not written: {comparison.unwritten}", file=sys.stderr)
        if address is not None and comparison.document is not None:
            _tell(publish_after(directory, comparison.document, comparison.records, address))
    all_ended = {config_hash(config) for config in configs} <= finished_hashes(directory)
    return ALL_ENDED if all_ended and not interrupted else SOME_FAILED


def _begun_before(config: Config) -> Path | None:
    """Find the multirun to go on with: that of `into=`, or the one of this very job before Slurm has requeued it.

    Raises:
        UserError: there is none, or jobs of it may yet train in it.
    """
    if config.into is not None:
        directory = existing_multirun(config.into)
        refuse_queued(directory)
    elif (requeued := requeued_multirun(config)) is not None:
        directory = requeued
        _tell(f"Slurm has requeued this job: going on with {directory}")
    else:
        return None
    for error in find_records(directory).unreadable:
        _tell(f"into={directory}: {error}; its point counts as not run")
    return directory


def _tell(line: str | None) -> None:
    if line:
        print(escaped(line), file=sys.stderr)
