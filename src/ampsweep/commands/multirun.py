"""`python train.py -m`, once its points are known: check them all, train each in a process of its own, compare."""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
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
from ampsweep.sweep.preflight import preflight
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.text import escaped
from ampsweep.tracking.wandb.process import WandbProcess

_TIME_SHARE: Final = 20


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


if TYPE_CHECKING:
    from ampsweep.record import RunRecord
    from ampsweep.report.document import Document


class LiveComparison:
    """The files of a comparison, rewritten while its multirun goes on.

    Written between two runs, when nothing is measured, and only when it has cost less than a twentieth of the time so
    far: long sweeps keep an open page fresh, short ones are not slowed.

    Args:
        directory: the multirun's directory.
        config: the config of any of its runs.
        show: called with the page whenever it was updated.
    """

    def __init__(self, directory: Path, config: Config, show: Callable[[Path], None]) -> None:
        self._directory, self._report, self._show = directory, config.report, show
        self._began, self._spent = time.monotonic(), 0.0
        self.document: Document | None = None
        self.records: Sequence[tuple[Path, RunRecord]] = []
        """The data that the files were last made from."""
        self.unwritten: str | None = None
        """The reason why the files could not be written the last time."""

    def rewrite(self) -> None:
        """Update the files, if it is time to."""
        if self._spent * _TIME_SHARE < time.monotonic() - self._began:
            with suppress(MemoryError):  # the runs go on; at their end it is told
                self.write()
                if self.unwritten is None:
                    self._show(self._directory / "comparison.html")

    def write(self) -> "Document":
        """Update the files, where there is room; return the comparison, with paths relative to them.

        Raises:
            UserError: there are no records yet.
        """
        # Only here: the statistics take a fifth of a second to import, which no training should wait for.
        from ampsweep.report.compare import compare_directories
        from ampsweep.report.comparison_document import comparison_document, write_comparison

        began = time.monotonic()
        compared = compare_directories([self._directory], **vars(self._report))
        self.records = compared.records
        self.document = comparison_document(compared, self._directory)
        try:
            write_comparison(self.document, self._directory)
            self.unwritten = None
        except OSError as error:  # which is no fault of the runs
            self.unwritten = f"{error.filename}: {error.strerror}"
        self._spent += time.monotonic() - began
        return self.document
