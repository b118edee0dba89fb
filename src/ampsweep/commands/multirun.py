"""`python train.py -m` after composition: check all points, train each in its own process, compare them."""

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.preflight import checked_with_wandb, preflight
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.text import escaped
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess

if TYPE_CHECKING:
    from ampsweep.record import RunRecord
    from ampsweep.report.document import Document

    Runs = Sequence[tuple[Path, RunRecord]]

_TIME_SHARE: Final = 20
"""The live page may take one part in this many of the sweep's time."""


def start_processes() -> None:
    """Start the fork server of the runs' processes; it imports while the caller goes on."""
    start_fork_server(["ampsweep.commands.fork_server"])


def train_all(points: Points, wandb: WandbProcess | None, chosen: str) -> int:
    """Train the points of a multirun and compare them; return the exit code.

    Raises:
        UserError: wrong input; nothing was trained.
    """
    configs = [point.config for point in points.points]
    first = configs[0]
    if any(config.resume == "auto" for config in configs):
        raise UserError("resume=auto: a multirun is continued with into=DIRECTORY")
    into = _begun_before(first)
    address = None if wandb is None else wandb.address
    elsewhere = points.launcher == "slurm"
    with checked_with_wandb(configs, address):
        checked = preflight(configs, elsewhere=elsewhere)
    if first.dry_run:
        from ampsweep.commands.dry_run import plan_document

        put_out(plan_document(configs, checked, into, elsewhere=elsewhere), chosen)
        return ALL_ENDED
    directory = into or new_directory(first)
    collect_new_garbage_only()
    plan = Plan(points.points, () if into is None else finished_hashes(into))
    jobs = SubmittedJobs(directory) if elsewhere else None
    page = _LivePage(directory, first)
    interrupted, goes_on_alone = False, None
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay(plan))
        if points.launcher != "here":
            stack.enter_context(RunWatch(directory, configs, display, jobs, page.rewrite))
        for check in checked:
            if check.too_large is not None:
                display.say(check.too_large)
        try:
            with nullcontext() if jobs is None else jobs.waited_for():
                run_all(points, directory, SweepJob(display, wandb=address, after_run=page.rewrite))
        except KeyboardInterrupt:
            interrupted = True
            goes_on_alone = None if jobs is None else jobs.left()
            if goes_on_alone is not None:
                display.say(goes_on_alone)
        except (SweepEnded, OSError) as end:  # from a run's files or Hydra's
            interrupted = True
            reason = f"{end.filename or directory}: {end.strerror}" if isinstance(end, OSError) else str(end)
            goes_on = f", and into={directory} goes on with it" if find_records(directory).records else ""
            display.say(f"{reason}; the sweep ends here{goes_on}")
    left = find_records(directory)
    if address is not None and not interrupted:
        from ampsweep.tracking.wandb.sync_run import send_lost

        _say(send_lost(directory, [path for path, _ in left.records], address))
    if interrupted and into is None and goes_on_alone is None and not (left.records or left.unreadable):
        shutil.rmtree(directory)  # made above, and without any record
        return SOME_FAILED
    if left.records:
        _show_comparison(directory, first, address)
    all_ended = {config_hash(config) for config in configs} <= finished_hashes(directory)
    return ALL_ENDED if all_ended and not interrupted else SOME_FAILED


def _begun_before(config: Config) -> Path | None:
    """Find the multirun to continue: that of `into=`, or the one that this job began before Slurm requeued it.

    Raises:
        UserError: `into=` names no multirun, or Slurm jobs of it are still queued.
    """
    if config.into is not None:
        directory = existing_multirun(config.into)
        refuse_queued(directory)
    elif (requeued := requeued_multirun(config)) is not None:
        directory = requeued
        _say(f"Slurm has requeued this job: going on with {directory}")
    else:
        return None
    for error in find_records(directory).unreadable:
        _say(f"into={directory}: {error}; its point counts as not run")
    return directory


def _say(line: str | None) -> None:
    if line:
        print(escaped(line), file=sys.stderr)


class _LivePage:
    """Rewrites the files of the comparison after runs, in at most a twentieth of the time so far."""

    def __init__(self, directory: Path, config: Config) -> None:
        self._directory, self._config = directory, config
        self._began_s, self._spent_s = time.monotonic(), 0.0

    def rewrite(self) -> None:
        began_s = time.monotonic()
        if self._spent_s * _TIME_SHARE >= began_s - self._began_s:
            return
        from ampsweep.report.comparison_document import write_comparison

        with suppress(OSError, MemoryError):  # the runs go on; a lasting error is reported at their end
            document, _ = _compared(self._directory, self._config)
            write_comparison(document, self._directory)
        self._spent_s += time.monotonic() - began_s


def _compared(directory: Path, config: Config) -> "tuple[Document, Runs]":
    # Imported only here: the statistics take 0.2 s to import, and no training should wait for that.
    from ampsweep.report.compare import compare_directories
    from ampsweep.report.comparison_document import comparison_document

    compared = compare_directories([directory], **vars(config.report))
    return comparison_document(compared, directory), compared.records


def _show_comparison(directory: Path, config: Config, wandb: WandbAddress | None) -> None:
    from ampsweep.report.comparison_document import write_comparison

    document, records = _compared(directory, config)
    put_out(document)
    try:
        write_comparison(document, directory)
        print(escaped(f"\n{directory / 'comparison.html'}\n{directory / 'comparison.md'}", keeps="\n"))
    except OSError as error:
        print(f"the comparison's files are not written: {error.filename}: {error.strerror}", file=sys.stderr)
    if wandb is not None:
        _say(publish_after(directory, document, records, wandb))
