"""The jobs that Hydra's launcher for Slurm has submitted (hydra-submitit-launcher), followed in Slurm's queue.

submitit waits for the result of each job, and asks `sacct` whether there will be none. Without accounting there is no
`sacct`, and with it the first job that is killed ends the wait for all others. So submitit is left to wait for
results, and who watches the runs gives it one in place of a job that has ended without.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from ampsweep.config.errors import UserError
from ampsweep.launch.slurm import JobState, users_jobs
from ampsweep.run.directories import MULTIRUN_NAME
from ampsweep.text import plural

_IDS: Final = ".slurm_jobs"
_EVERY_S: Final = 2.0
_EVERY_AT_MOST_S: Final = 30.0
_TIME_SHARE: Final = 20
"""Slurm is asked every two seconds at first, and then ever less often: a twentieth of the time that has passed."""
_KNOWN_WITHIN_S: Final = 60.0
"""A job that Slurm does not know so long after it was submitted has ended, and been forgotten."""


class SubmittedJobs:
    """The jobs of a multirun into `directory`; entered, it follows those that submitit submits."""

    def __init__(self, directory: Path) -> None:
        self.jobs: list[str] = []
        """All jobs in the order of their points."""
        self._directory = directory
        self._states: dict[str, JobState] = {}
        self._began_s = self._asked_s = time.monotonic()
        self._registered_s: dict[str, float] = {}
        self._folder: str | None = None

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Have submitit tell of each job that it submits, and leave it to us to see how the job goes on.

        A job that could not even load what it was to do makes submitit give up; here that is waited for like any other.
        """
        from submitit.core.utils import UncompletedJobError
        from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

        tell = self._submitted

        class Watcher(SlurmInfoWatcher):
            """submitit's knowledge of the queue: none, so that it waits for results."""

            def register_job(self, job_id: str) -> None:
                super().register_job(job_id)
                tell(job_id)

            def get_state(self, job_id: str, mode: str = "standard") -> str:
                return "UNKNOWN"

            def update(self) -> None:
                """Do not ask `sacct`."""

        before, SlurmJob.watcher = SlurmJob.watcher, Watcher()
        try:
            yield
        except UncompletedJobError:
            while not all(self.is_over(job) for job in self.jobs):
                time.sleep(_EVERY_S)
                self.look()
        finally:
            SlurmJob.watcher = before

    def look(self) -> None:
        """Ask Slurm for the states of the jobs, if it is time to."""
        now_s = time.monotonic()
        every_s = min(max((now_s - self._began_s) / _TIME_SHARE, _EVERY_S), _EVERY_AT_MOST_S)
        if not self.jobs or now_s - self._asked_s < every_s or (found := users_jobs()) is None:
            return
        self._asked_s = now_s
        for job in self.jobs:
            if job in found:
                self._states[job] = found[job]
            elif job in self._states or now_s - self._registered_s[job] > _KNOWN_WITHIN_S:
                known = self._states.get(job)
                if known is None or not known.is_over:
                    self._states[job] = JobState(job, "UNKNOWN")

    def state(self, job: str) -> JobState | None:
        """The job's state when Slurm was last asked; None if it was not known then."""
        return self._states.get(job)

    def is_over(self, job: str) -> bool:
        """Tell whether the job will do nothing more: it has left a result, or Slurm says that it has ended."""
        state = self._states.get(job)
        return self.has_result(job) or (state is not None and state.is_over)

    def waiting(self) -> list[JobState]:
        return [state for job in self.jobs if (state := self._states.get(job)) is not None and state.waits]

    def has_result(self, job: str) -> bool:
        """Tell whether the job has left a result for its launcher."""
        found: bool = self._paths(job).result_pickle.exists()
        return found

    def close(self, job: str) -> None:
        """Leave the launcher a result in place of a job that has ended without: what became of it is in its record."""
        from submitit.core.utils import cloudpickle_dump, temporary_save_path

        result = JobReturn(status=JobStatus.COMPLETED)
        file = self._paths(job).result_pickle
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary_save_path(file) as path:
            cloudpickle_dump(("success", result), path)

    def log(self, job: str) -> Path:
        """The file with what the job wrote to stderr."""
        paths = self._paths(job)
        found: Path = paths.stderr if paths.stderr.exists() else paths.stdout
        return found

    def left(self) -> str | None:
        """Say which jobs are left to themselves if this process ends now; None if there are none."""
        left = [job for job in self.jobs if not self.is_over(job)]
        if not left:
            return None
        arrays = " ".join(dict.fromkeys(job.partition("_")[0] for job in left))
        return (
            f"{plural(len(left), 'job')} of Slurm will be recorded without this process: `ampsweep report "
            f"{self._directory}` compares what is there, `scancel {arrays}` ends what is left"
        )

    def _submitted(self, job: str) -> None:
        if "_" in job and (array := job.partition("_")[0]) in self.jobs:
            self.jobs.remove(array)  # submitit tells of the array first
        self.jobs.append(job)
        self._registered_s[job] = time.monotonic()
        with suppress(OSError):
            (self._directory / _IDS).write_text("".join(f"{job}\n" for job in self.jobs), encoding="utf-8")

    def _paths(self, job: str) -> Any:
        from submitit.core.utils import JobPaths

        if self._folder is None:
            multirun: Any = OmegaConf.load(self._directory / MULTIRUN_NAME)
            self._folder = str(multirun.hydra.launcher.submitit_folder)
        return JobPaths(self._folder, job_id=job, task_id=0)


def refuse_queued(directory: Path) -> None:
    """Refuse to begin points of a multirun once more while jobs of it are still in the queue.

    Raises:
        UserError: some are.
    """
    try:
        jobs = (directory / _IDS).read_text(encoding="utf-8").split()
    except OSError:
        return
    known = users_jobs() or {}
    queued = [job for job in jobs if job in known and not known[job].is_over]
    if queued:
        arrays = " ".join(dict.fromkeys(job.partition("_")[0] for job in queued))
        raise UserError(
            f"into={directory}: Slurm's queue still has {plural(len(queued), 'job')} of it; wait for its end, "
            f"or cancel what is left with `scancel {arrays}`"
        )
