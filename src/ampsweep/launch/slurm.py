"""Slurm: the job of this process, and the states of jobs.

https://slurm.schedmd.com/sbatch.html#lbAK (variables), https://slurm.schedmd.com/squeue.html (states)
"""

import getpass
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ampsweep.text import BYTES_OF

_TIMEOUT_S: Final = 20.0  # limit of squeue: a busy controller answers late
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
    try:
        ended = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):  # it is missing, fails, or takes too long
        return None
    found = {}
    rows = [[word.strip() for word in line.split("|")] for line in ended.stdout.splitlines()]
    for job, state, resources, *_ in (row for row in rows if len(row) > _FIELDS.count(",")):
        memory = re.search(r"\bmem=([\d.]+)([KMGT])", resources)
        limit = None if memory is None else round(float(memory[1]) * BYTES_OF[f"{memory[2]}iB"])
        found[job] = JobState(job, state, limit)
    return found
