"""A lack of memory as a fact: where it ended a run, what was asked for, and what was in use."""

from dataclasses import dataclass
from typing import Final, Literal

Phase = Literal["build", "data", "forward", "backward", "optimizer", "eval", "other"]
"""What a run was doing: `data` gets a batch, `optimizer` unscales and clips too, `other` comes between steps."""

_UNITS: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


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
            facts.append(f"{_binary(self.requested_bytes)} asked for")
        if self.in_use_bytes is not None:
            facts.append(f"{_binary(self.in_use_bytes)} in use")
        limit = "" if self.limit_bytes is None else f", limit {_binary(self.limit_bytes)}"
        what = " with ".join(facts) + limit if facts else self.told
        return f"out of memory{where}{step}: {what}"


def _binary(num_bytes: int) -> str:
    unit, size = next((unit, size) for unit, size in _UNITS if num_bytes >= size or size == 1)
    return f"{num_bytes / size:.4g} {unit}"
