"""`python train.py -m` after composition: check all points, train each in its own process, compare them."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.commands.hydra_job import SweepEnded, SweepJob, run_all
from ampsweep.commands.run_watch import RunWatch
from ampsweep.commands.submitted_jobs import SubmittedJobs, refuse_queued
from ampsweep.config.compose import Point, Points
from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.launch.garbage_collection import collect_new_garbage_only
from ampsweep.launch.processes import start_fork_server
from ampsweep.records import find_records
from ampsweep.records.outcome import ALL_ENDED, SOME_FAILED
from ampsweep.report.data_formats import put_out
from ampsweep.report.wandb.send_comparison import publish_after
from ampsweep.run.directories import existing_multirun, finished_hashes, new_directory, requeued_multirun
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.preflight import checked_with_wandb, preflight
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.sweep.seeded_arms import SeededArm, seeded_arms, trained_arms
from ampsweep.text import escaped
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess

if TYPE_CHECKING:
    from ampsweep.report.compare import Compared
    from ampsweep.report.document import Document

_TIME_SHARE: Final = 20  # the live page may take one part in this many of the sweep's time


def start_processes() -> None:
    """Start the fork server of the runs' processes; it imports while the caller goes on."""
    start_fork_server(["ampsweep.commands.fork_server"])


def train_all(points: Points, wandb: WandbProcess | None, chosen: str) -> int:
    """Train the points of a multirun and compare them; return the exit code. UserError: wrong input; nothing was
    trained."""
    began_s = time.monotonic()
    configs = [point.config for point in points.points]
    first = configs[0]
    if any(config.resume == "auto" for config in configs):
        raise UserError("resume=auto: a multirun is continued with into=DIRECTORY")
    into = _begun_before(first)
    arms = seeded_arms(points) if first.report.decide else []
    configs = [of.first for of in arms] or configs
    address = None if wandb is None else wandb.address
    elsewhere = points.launcher == "SlurmLauncher"
    with checked_with_wandb(configs, address):
        checked = preflight(configs, elsewhere=elsewhere)
    said = [check.too_large for check in checked if check.too_large is not None]
    if arms:
        arms, left_out = trained_arms(arms, checked, points.overrides, None if into is None else _steps_in(into))
        points = replace(points, points=tuple(point for of in arms for point in of.points))
        said += left_out
    if first.dry_run:
        from ampsweep.commands.dry_run import decision_document, plan_document

        if arms:
            put_out(decision_document(arms, left_out, into), chosen)
        else:
            put_out(plan_document(configs, checked, into, elsewhere=elsewhere), chosen)
        return ALL_ENDED
    directory = into or new_directory(first)
    collect_new_garbage_only()
    plan = Plan(points.points, () if into is None else finished_hashes(into), is_open=bool(arms))
    jobs = SubmittedJobs(directory) if elsewhere else None
    page = SweepPage(directory, vars(first.report))
    reason: str | None = None  # for which the sweep ends before its runs
    goes_on_alone: str | None = None
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay(plan))
        if points.launcher != "BasicLauncher":
            stack.enter_context(RunWatch(directory, configs, display, jobs, page.rewrite))
        for sentence in said:
            display.say(sentence)
        order = page.sequential_runs(arms, began_s, display.say) if arms else points.points
        try:
            with nullcontext() if jobs is None else jobs.waited_for():
                run_all(points, directory, SweepJob(display, wandb=address, after_run=page.rewrite), order)
        except KeyboardInterrupt:
            reason, goes_on_alone = "interrupted", None if jobs is None else jobs.left()
        except (SweepEnded, OSError) as end:  # from a run's files or Hydra's
            reason = f"{end.filename or directory}: {end.strerror}" if isinstance(end, OSError) else str(end)
    left = find_records(directory)
    if address is not None and reason is None:
        from ampsweep.tracking.wandb.sync_run import send_lost

        _say(send_lost(directory, [path for path, _ in left.records], address))
    if reason is not None and into is None and goes_on_alone is None and not (left.records or left.unreadable):
        shutil.rmtree(directory)  # made above, and without any record
        _say(f"{reason}; nothing was trained")
        return SOME_FAILED
    begun = {record.config_hash for _, record in left.records}
    last_words = None if reason is None else goes_on_alone or goes_on(reason, directory)
    return page.show_at_end(begun if arms else map(config_hash, configs), address, last_words)


def _begun_before(config: Config) -> Path | None:
    """Find the multirun to continue: that of `into=`, or the one that this job began before Slurm requeued it.
    UserError: `into=` names no multirun, or Slurm jobs of it are still queued."""
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


def _steps_in(into: Path) -> int | None:
    """The steps of the earlier runs in `into`, so that further ones pair with them."""
    steps = (record.config.get("trainer", {}).get("steps") for _, record in find_records(into).records)
    return next(steps, None)


def _say(line: str | None) -> None:
    if line:
        print(escaped(line), file=sys.stderr)


def goes_on(reason: str, directory: Path, option: str = "into=") -> str:
    """The last words of a command that ended before its runs."""
    return f"{reason}; the same command with {option}{shlex.quote(str(directory))} goes on with it"


class SweepPage:
    """The comparison of a directory's runs, while they run and at their end. `settings`: fields of `ReportConfig`;
    those that are None are as the runs recorded them."""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        self._directory, self._settings = directory, settings
        self._began_s, self._spent_s = time.monotonic(), 0.0

    def rewrite(self) -> None:
        """Rewrite its files after a run, in at most a twentieth of the time so far."""
        began_s = time.monotonic()
        if self._spent_s * _TIME_SHARE >= began_s - self._began_s:
            return
        from ampsweep.report.comparison_document import write_comparison

        with suppress(OSError, MemoryError):  # the runs go on; a lasting error is reported at their end
            write_comparison(self._document()[0], self._directory)
        self._spent_s += time.monotonic() - began_s

    def sequential_runs(
        self, arms: Sequence[SeededArm], began_s: float, say: Callable[[str], None]
    ) -> "Iterable[Point]":
        """Choose the runs of `report.decide=true` by the comparison of those before."""
        from ampsweep.sweep.sequential_runs import SequentialRuns

        return SequentialRuns(arms, self._directory, lambda: self._compared().comparison, began_s, say)

    def show_at_end(
        self, hashes: Iterable[str], address: WandbAddress | None = None, last_words: str | None = None
    ) -> int:
        """Print, write and send what there is; return the exit code: 0 if the runs with these hashes have all ended.
        `last_words`: those of a command that ended before its runs."""
        try:
            if find_records(self._directory).records:
                self._show(address)
        finally:  # below the page, where the next command is typed; also if that is interrupted
            _say(last_words)
        is_over = last_words is None and finished_hashes(self._directory).issuperset(hashes)
        return ALL_ENDED if is_over else SOME_FAILED

    def _show(self, address: WandbAddress | None) -> None:
        from ampsweep.report.comparison_document import write_comparison

        document, compared = self._document()
        put_out(document)
        try:
            write_comparison(document, self._directory)
            files = [f"{self._directory / 'comparison'}.{kind}" for kind in ("html", "md")]
            print(escaped("\n" + "\n".join(files), keeps="\n"))
        except OSError as error:
            print(f"the comparison's files are not written: {error.filename}: {error.strerror}", file=sys.stderr)
        if address is not None:
            _say(publish_after(self._directory, document, compared.records, address))

    def _document(self) -> "tuple[Document, Compared]":
        from ampsweep.report.comparison_document import comparison_document

        compared = self._compared()
        return comparison_document(compared, self._directory), compared

    def _compared(self) -> "Compared":
        # Imported only here: the statistics take 0.2 s to import, and no training should wait for that.
        from ampsweep.report.compare import compare_directories

        return compare_directories([self._directory], **self._settings)
