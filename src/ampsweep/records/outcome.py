"""The outcome of a run: status, exit code, and facts about a lack of memory."""

from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.text import allocation, num_bytes

Status = Literal["completed", "oom", "diverged", "unsupported", "interrupted", "failed"]
OUTCOMES: Final = frozenset({"completed", "oom", "diverged", "unsupported"})  # statuses that answer what the run asked

ALL_ENDED: Final = 0
SOME_FAILED: Final = 1
WRONG_INPUT: Final = 2
REGRESSED: Final = 3
"""Exit codes: every run ended in an outcome; some failed or were interrupted; the user's input is wrong; an arm is
worse than in the sweep that it is compared with."""

Phase = Literal["build", "data", "forward", "backward", "optimizer", "eval", "other"]
"""`data` gets a batch, `optimizer` includes unscaling and clipping, `other` is between steps."""


def exit_code(*statuses: Status) -> int:
    return ALL_ENDED if OUTCOMES.issuperset(statuses) else SOME_FAILED


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    phase: Phase | None  # None if the process was killed
    step: int | None = None  # from 1; None before the first
    requested_bytes: int | None = None
    in_use_bytes: int | None = None  # by tensors, or by the process if the host was full
    limit_bytes: int | None = None  # `trainer.memory_limit_gib` or the job's limit; None if the device was full
    error: str = ""  # one line; empty if the process was killed
    killed_by: Literal["kernel", "slurm"] | None = None
    slurm_job: str | None = None

    @property
    def sentence(self) -> str:
        if self.killed_by is not None:
            return f"out of memory: {self._killing()}"
        where = "" if self.phase is None else " while building" if self.phase == "build" else f" in {self.phase}"
        step = "" if self.step is None else f" of step {self.step}"
        facts = []
        if self.requested_bytes is not None:
            facts.append(f"{allocation(self.requested_bytes)} asked for")
        if self.in_use_bytes is not None:
            facts.append(f"{allocation(self.in_use_bytes)} in use")
        limit = "" if self.limit_bytes is None else f", limit {allocation(self.limit_bytes)}"
        what = " with ".join(facts) + limit if facts else self.error
        return f"out of memory{where}{step}: {what}"

    def _killing(self) -> str:
        if self.killed_by == "kernel":
            job = "" if self.slurm_job is None else f" in Slurm's job {self.slurm_job} (--mem)"
            return f"the process was killed by SIGKILL, and the kernel counts a process killed for lack of memory{job}"
        used = "" if self.in_use_bytes is None else f", which had {num_bytes(self.in_use_bytes)},"
        limit = "" if self.limit_bytes is None else f" of {num_bytes(self.limit_bytes)}"
        return f"Slurm killed job {self.slurm_job}{used} for its memory limit{limit} (--mem)"


OOM_KILLED: Final = OutOfMemory(phase=None, killed_by="kernel")
