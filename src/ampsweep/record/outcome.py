"""The outcome of a run: its status, what it means for exit codes, and the facts of a lack of memory."""

from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.text import allocation

Status = Literal["completed", "oom", "diverged", "unsupported", "interrupted", "failed"]
OUTCOMES: Final = frozenset({"completed", "oom", "diverged", "unsupported"})
"""Statuses that are an answer; `interrupted` and `failed` are the lack of one."""

ALL_ENDED: Final = 0
SOME_FAILED: Final = 1
WRONG_INPUT: Final = 2
"""Exit codes: every run ended in an outcome, some failed or were interrupted, the user's input is wrong."""

Phase = Literal["build", "data", "forward", "backward", "optimizer", "eval", "other"]
"""What a run was doing: `data` gets a batch, `optimizer` unscales and clips too, `other` comes between steps."""


def exit_code(*statuses: Status) -> int:
    """The exit code of a process whose runs have these statuses."""
    return ALL_ENDED if OUTCOMES.issuperset(statuses) else SOME_FAILED


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """Why a run ended `oom`. What nobody told is None."""

    phase: Phase | None
    """None: the process was killed, and nobody knows what it was doing."""
    step: int | None = None
    """Of the step that was being taken, counted from 1; None before the first."""
    requested_bytes: int | None = None
    """What the last allocation asked for."""
    in_use_bytes: int | None = None
    """In use at that moment: by tensors, and where the host itself had no more, by the process."""
    limit_bytes: int | None = None
    """That of `trainer.memory_limit_gib`; None where it was the device's own."""
    told: str = ""
    """What was raised or found, in one line."""

    @property
    def sentence(self) -> str:
        """All of it, for people."""
        where = "" if self.phase is None else " while building" if self.phase == "build" else f" in {self.phase}"
        step = "" if self.step is None else f" of step {self.step}"
        facts = []
        if self.requested_bytes is not None:
            facts.append(f"{allocation(self.requested_bytes)} asked for")
        if self.in_use_bytes is not None:
            facts.append(f"{allocation(self.in_use_bytes)} in use")
        limit = "" if self.limit_bytes is None else f", limit {allocation(self.limit_bytes)}"
        what = " with ".join(facts) + limit if facts else self.told
        return f"out of memory{where}{step}: {what}"


OOM_KILLED: Final = OutOfMemory(
    phase=None, told="the process was killed by SIGKILL, and the kernel counts a process killed for lack of memory"
)
"""What is known of a run whose process the kernel has killed."""
