"""Runs in processes of a launcher's workers, followed by their records on disk, and by their jobs in Slurm's queue."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from ampsweep.commands.submitted_jobs import SubmittedJobs
from ampsweep.config.identity import run_directory_name
from ampsweep.config.schema import Config
from ampsweep.record import FILE_NAME, RecordError, RunRecord
from ampsweep.run.slurm_end import complete_record_of_job
from ampsweep.sweep.progress.display import ProgressDisplay

_EVERY_S: Final = 2.0


class RunWatch:
    """Reports to `display` the runs of `configs` in `directory` that a launcher's workers do, on whichever machine.

    A run that was interrupted may have been requeued: it has ended once its job has. The records of jobs that Slurm has
    ended are completed here. Records of earlier attempts do not count.

    Args:
        directory: the multirun's directory.
        configs: the configs of the runs, in the order of `jobs`.
        display: shows them.
        jobs: their jobs in Slurm's queue; None if they are no jobs of Slurm.
        after_run: called in the watching thread after looks that have found the end of a job's run.
    """

    def __init__(
        self,
        directory: Path,
        configs: Sequence[Config],
        display: ProgressDisplay,
        jobs: SubmittedJobs | None = None,
        after_run: Callable[[], None] | None = None,
    ) -> None:
        self._files = [directory / run_directory_name(config) / FILE_NAME for config in configs]
        self._waited_for = dict(zip(self._files, configs, strict=True))
        self._seen = {file: _changed_ns(file) for file in self._files}
        self._going_on: set[Path] = set()
        self._interrupted: dict[Path, RunRecord] = {}
        self._closed: set[Path] = set()
        """Records of jobs that are over."""
        self._display, self._jobs, self._after_run = display, jobs, after_run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="run-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(_EVERY_S)
            num_left = len(self._waited_for)
            if self._jobs is not None:
                self._jobs.look()
            self._look()
            if self._jobs is not None:
                self._look_at_jobs(self._jobs)
                if self._after_run is not None and 0 < len(self._waited_for) < num_left:
                    self._after_run()

    def _look(self) -> None:
        for file, config in list(self._waited_for.items()):
            changed_ns = _changed_ns(file)
            if changed_ns == self._seen[file]:
                continue
            self._seen[file] = changed_ns
            try:
                record = RunRecord.read(file.parent)
            except (FileNotFoundError, RecordError):  # being moved away, or changed by somebody
                continue
            self._going_on.add(file)
            self._interrupted.pop(file, None)
            if record.ended_at is None:
                continue
            if record.status == "interrupted" and self._jobs is not None and file not in self._closed:
                self._going_on.remove(file)
                self._interrupted[file] = record
            else:
                self._ended(file, config, record)
        self._display.runs_elsewhere(len(self._going_on))

    def _look_at_jobs(self, jobs: SubmittedJobs) -> None:
        """Complete the records of jobs that Slurm has ended, and report the runs that were interrupted for good."""
        for job, file in zip(jobs.jobs, self._files, strict=False):
            if file in self._closed or not jobs.is_over(job):
                continue
            self._closed.add(file)
            config, record = self._waited_for.get(file), self._interrupted.get(file)
            if not jobs.has_result(job):
                state = jobs.state(job)
                assert state is not None, "it is over by what Slurm says"
                try:
                    if config is not None:
                        record = complete_record_of_job(file.parent, config, state, jobs.log(job))
                        self._seen[file] = _changed_ns(file)
                except OSError as error:
                    self._display.say(f"{error.filename}: {error.strerror}")
                if record is None:
                    self._display.say(f"Slurm's job {job} ended {state.state} before {file.parent.name} began")
            if config is not None and record is not None:
                self._ended(file, config, record)
        waiting = jobs.waiting()
        self._display.runs_queued(len(waiting), waiting[0].reason if waiting else None)

    def _ended(self, file: Path, config: Config, record: RunRecord) -> None:
        self._going_on.discard(file)
        self._interrupted.pop(file, None)
        del self._waited_for[file]
        self._display.run_ends(config, record)


def _changed_ns(file: Path) -> int | None:
    """Time of the file's last change in ns; None if there is no file."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None
