"""Slurm: the job of this process, the states of jobs, and why a job is stopped.

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
"""Limit of Slurm's commands: a busy controller answers late."""
_WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_GOING_ON: Final = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
)
_FIELDS: Final = ",".join(f"{name}:256|" for name in ("JobArrayID", "State", "tres-alloc"))


@dataclass(frozen=True)
class JobState:
    """The id (`12`, in an array `12_3`), Slurm's state (`PENDING`) and the memory limit of a whole job."""

    job: str
    state: str
    memory_limit_bytes: int | None = None

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def is_over(self) -> bool:
        """Return True if the job has ended and will not run again."""
        return not self.waits and self.state not in _GOING_ON


def own_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The id of this process's job: `12`, in an array `12_3`; None outside Slurm."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID") or None


def num_restarts(environment: Mapping[str, str] = os.environ) -> int:
    count = environment.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def users_jobs() -> dict[str, JobState] | None:
    """This user's jobs, also those that ended minutes ago; None if Slurm does not answer."""
    words = ("squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", f"--Format={_FIELDS}")
    answer = _answer(*words)
    return None if answer is None else {job.job: job for line in answer.splitlines() if (job := _parsed(line))}


def why_stopped() -> str | None:
    """The reason why Slurm stops this process's job; None if unknown."""
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
    return JobState(job, state, None if memory is None else round(float(memory[1]) * BYTES_OF[f"{memory[2]}iB"]))


def _answer(*words: str) -> str | None:
    """The output of a Slurm command; None if it is missing, fails, or takes too long."""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True)
        return ended.stdout
    return None
