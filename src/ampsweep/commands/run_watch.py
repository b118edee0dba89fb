"""Follow runs in a launcher's workers by their records on disk and their jobs in Slurm's queue."""

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from ampsweep.commands.submitted_jobs import SubmittedJobs
from ampsweep.config.identity import run_directory_name
from ampsweep.config.schema import Config
from ampsweep.launch.slurm import JobState
from ampsweep.records import FILE_NAME, RecordError, RunRecord, now
from ampsweep.records.outcome import OUTCOMES, OutOfMemory
from ampsweep.records.sections import Attempt
from ampsweep.run.failure import write_error
from ampsweep.run.request import new_record
from ampsweep.standard_streams import tail
from ampsweep.sweep.progress.display import ProgressDisplay

_EVERY_S: Final = 2.0
_OVER_LIMIT: Final = re.compile(r"exceeded memory limit \((\d+) > (\d+)\)")
_OUT_OF_MEMORY: Final = re.compile(r"exceeded (?:job |step )?memory limit|oom[-_ ]kill", re.IGNORECASE)
"""Slurm's messages in a job's log, from its polling of the memory and from the kernel's cgroups."""
_TAKEN_AWAY: Final = frozenset({"CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE", "REVOKED"})
"""States of jobs that were ended from outside, through no fault of the run."""


class RunWatch:
    """Reports to `display` the runs of `configs` that a launcher's workers train in `directory`, on any machine.

    With `jobs`, which are Slurm's in the order of `configs`, an interrupted run has ended only when its job has, since
    it may have been requeued; records of jobs that Slurm has ended are completed, and `after_run` is called in the
    watching thread after runs have ended. Ignores records of earlier attempts.
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
        self._closed: set[Path] = set()  # records of jobs that are over
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
            except (FileNotFoundError, RecordError):  # moved away, or edited by somebody
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
        self._display.num_elsewhere = len(self._going_on)

    def _look_at_jobs(self, jobs: SubmittedJobs) -> None:
        """Complete the records of jobs that Slurm has ended; report the interrupted runs that will not go on."""
        for job, file in zip(jobs.jobs, self._files, strict=False):
            if file in self._closed or not jobs.is_over(job):
                continue
            self._closed.add(file)
            config, record = self._waited_for.get(file), self._interrupted.get(file)
            if not jobs.has_result(job):
                state = jobs.states[job]  # Slurm says that it is over
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
        self._display.num_queued = jobs.num_waiting()

    def _ended(self, file: Path, config: Config, record: RunRecord) -> None:
        self._going_on.discard(file)
        self._interrupted.pop(file, None)
        del self._waited_for[file]
        self._display.run_ends(config, record)


def _changed_ns(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def complete_record_of_job(directory: Path, config: Config, job: JobState, log: Path) -> RunRecord | None:
    """Complete the record of the run in `directory` from the state of its job, which left no result.

    Returns the record; None if the job was cancelled before the run began. `log` is the job's stderr, with Slurm's own
    lines about its end.
    """
    try:
        record = RunRecord.read(directory)
    except (FileNotFoundError, RecordError):
        record = None
    is_of_job = record is not None and bool(record.attempts) and record.attempts[-1].slurm_job == job.job
    if record is not None and (record.status in OUTCOMES or (is_of_job and record.ended_at is not None)):
        return record
    said = tail(log)
    if record is None:
        if job.state in _TAKEN_AWAY and not directory.is_dir():
            return None
        record = new_record(config, device=config.device)
    if not is_of_job:
        record.attempts.append(Attempt(slurm_job=job.job))
    if job.state == "OUT_OF_MEMORY" or _OUT_OF_MEMORY.search(said):
        over = _OVER_LIMIT.search(said)
        used, limit = (None, job.memory_limit_bytes) if over is None else (int(over[1]), int(over[2]))
        record.oom = OutOfMemory(phase=None, in_use_bytes=used, limit_bytes=limit, killed_by="slurm", slurm_job=job.job)
        record.status, record.error = "oom", record.oom.sentence
    else:
        record.status = "interrupted" if job.state in _TAKEN_AWAY else "failed"
        record.error = f"Slurm's job {job.job} ended {job.state}; its log: {log}"
    record.ended_at = now()
    directory.mkdir(parents=True, exist_ok=True)
    if record.status == "failed":
        write_error(directory, f"{record.error}\n\n{said}", config)
    record.write(directory)
    return record
