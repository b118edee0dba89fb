"""Slurm as its jobs see it: the job of this process, and what Slurm tells about jobs.

https://slurm.schedmd.com/sbatch.html#lbAK (variables), https://slurm.schedmd.com/squeue.html (states)
"""

import getpass
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ampsweep.text import BYTES_OF

_TIMEOUT_S: Final = 20.0
"""The time that Slurm's commands may take: a busy controller answers late."""
_WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_GOING_ON: Final = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
)
_FIELDS: Final = ",".join(f"{name}:256|" for name in ("JobArrayID", "State", "tres-alloc"))


@dataclass(frozen=True)
class JobState:
    """A job as Slurm tells of it."""

    job: str
    """`12`, or `12_3` for a job of an array."""
    state: str
    """Slurm's name of it, such as PENDING, RUNNING or TIMEOUT."""
    memory_limit_bytes: int | None = None
    """The limit of the whole job."""

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def is_over(self) -> bool:
        """Tell whether the job has ended, and is in the queue no more."""
        return not self.waits and self.state not in _GOING_ON


def own_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The job that this process belongs to: `12`, or `12_3` for one of an array; None outside Slurm."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID") or None


def num_restarts(environment: Mapping[str, str] = os.environ) -> int:
    """Number of times that Slurm has requeued the job of this process."""
    count = environment.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def users_jobs() -> dict[str, JobState] | None:
    """This user's jobs that Slurm knows, those that ended in the last minutes too; None if it does not answer."""
    words = ("squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", f"--Format={_FIELDS}")
    answer = _answer(*words)
    return None if answer is None else {job.job: job for line in answer.splitlines() if (job := _parsed(line))}


def why_stopped() -> str | None:
    """Say why Slurm has sent a stop signal to the job of this process; None if it does not tell."""
    job = own_job()
    answer = None if job is None else _answer("scontrol", "--oneliner", "show", "job", job)
    if answer is None:
        return None
    facts = dict(re.findall(r"(?:^|\s)(\w+)=(\S+)", answer))
    if facts.get("JobState") == "TIMEOUT" or facts.get("Reason") == "TimeLimit":
        return f"the time limit ({facts.get('TimeLimit', '')}) of Slurm's job {job}"
    if facts.get("Restarts", "").isdecimal() and int(facts["Restarts"]) > num_restarts():
        return f"Slurm has requeued its job {job}"
    if facts.get("JobState") == "PREEMPTED":
        return f"Slurm has preempted its job {job}"
    if facts.get("JobState") in ("COMPLETING", "CANCELLED"):
        return f"Slurm's job {job} was cancelled"
    return None


def _parsed(line: str) -> JobState | None:
    words = [word.strip() for word in line.split("|")]
    if len(words) <= _FIELDS.count(","):
        return None
    job, state, resources, *_ = words
    memory = re.search(r"\bmem=([\d.]+)([KMGT])", resources)
    return JobState(
        job,
        state,
        memory_limit_bytes=None if memory is None else round(float(memory[1]) * BYTES_OF[f"{memory[2]}iB"]),
    )


def _answer(*words: str) -> str | None:
    """The words of a command of Slurm; None if it is not there, fails, or takes too long."""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True)
        return ended.stdout
    return None
