"""Follow the jobs that hydra-submitit-launcher has submitted to Slurm: submitit's own wait ends at the first killed
job, and never ends on clusters without accounting (`sacct`)."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ampsweep.config.errors import UserError
from ampsweep.launch.slurm import JobState, users_jobs
from ampsweep.launch.watchdog import interrupt_main_thread
from ampsweep.text import plural

_ASKED_EVERY_S: Final = 5.0
_KNOWN_WITHIN_S: Final = 60.0
"""A job that Slurm does not know this long after its submission has ended and been forgotten."""
_RESULTS_WITHIN_S: Final = 15.0  # if the launcher still waits this long after all jobs have ended, it waits in vain


class SubmittedJobs:
    """The jobs of a multirun in `directory` that are submitted from now on."""

    def __init__(self, directory: Path) -> None:
        self.jobs: list[str] = []  # the jobs known when Slurm was last asked, in the order of their points
        self._directory, self._earlier = directory, _submitted(directory)
        self.states: dict[str, JobState] = {}  # when Slurm was last asked
        self._asked_s = self._over_since_s = time.monotonic()
        self._is_waited_for = self._is_in_vain = False

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Enclose the launcher's wait, and end it when Slurm has ended all jobs, with or without results."""
        from submitit.core.utils import UncompletedJobError

        try:
            try:
                self._is_waited_for = True
                yield
            finally:
                self._is_waited_for = False
        except UncompletedJobError:  # raised for the first job that was killed: the others go on
            while not all(map(self.is_over, self.jobs)):
                time.sleep(_ASKED_EVERY_S)
                self.look()
        except KeyboardInterrupt:
            if not self._is_in_vain:
                raise
            self._is_in_vain = False

    def look(self) -> None:
        """Ask Slurm for the states of the jobs every few seconds; end a wait that is in vain."""
        if (now_s := time.monotonic()) - self._asked_s < _ASKED_EVERY_S or (found := users_jobs()) is None:
            return
        self._asked_s = now_s
        self.jobs = [job for job in _submitted(self._directory) if job not in self._earlier]
        for job in self.jobs:
            age_s = time.time() - _file(self._directory, job, "submitted.pkl").stat().st_mtime
            if job in found:
                self.states[job] = found[job]
            elif not self.is_over(job) and (job in self.states or age_s > _KNOWN_WITHIN_S):
                self.states[job] = JobState(job, "UNKNOWN")
        if not self.jobs or not all(map(self.is_over, self.jobs)):
            self._over_since_s = now_s
        elif self._is_waited_for and now_s - self._over_since_s > _RESULTS_WITHIN_S and not self._is_in_vain:
            self._is_in_vain = True
            interrupt_main_thread()

    def is_over(self, job: str) -> bool:
        """Return True if the job has left a result or Slurm says that it has ended."""
        state = self.states.get(job)
        return self.has_result(job) or (state is not None and state.is_over)

    def num_waiting(self) -> int:
        return sum(job in self.states and self.states[job].waits for job in self.jobs)

    def has_result(self, job: str) -> bool:
        return _file(self._directory, job, "0_result.pkl").exists()

    def log(self, job: str) -> Path:
        """The job's stderr."""
        return _file(self._directory, job, "0_log.err")

    def left(self) -> str | None:
        """Return a sentence about the jobs that go on if this process ends now; None if there are none."""
        left = [job for job in _submitted(self._directory) if job not in self._earlier and not self.is_over(job)]
        if not left:
            return None
        return (
            f"{plural(len(left), 'job')} of Slurm will be recorded without this process: `ampsweep report "
            f"{self._directory}` compares what is there, `scancel {_arrays(left)}` ends what is left"
        )


def refuse_queued(directory: Path) -> None:
    """Raise UserError if jobs of the multirun are still in Slurm's queue: its points must not begin twice."""
    known = (users_jobs() or {}) if (jobs := _submitted(directory)) else {}
    queued = [job for job in jobs if job in known and not known[job].is_over]
    if queued:
        raise UserError(
            f"into={directory}: Slurm's queue still has {plural(len(queued), 'job')} of it; wait for its end, "
            f"or cancel what is left with `scancel {_arrays(queued)}`"
        )


def _submitted(directory: Path) -> list[str]:
    """List the submitted jobs of a multirun in order: submitit makes a folder for each."""
    found = {file.parent.name for file in directory.glob(".submitit/*/*_submitted.pkl")}
    return sorted(found, key=lambda job: [int(number) for number in job.split("_")])


def _file(directory: Path, job: str, name: str) -> Path:
    return directory / ".submitit" / job / f"{job}_{name}"


def _arrays(jobs: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
