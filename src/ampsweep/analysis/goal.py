"""The goal that an arm is recommended for: to reach the loss in the least time or energy, within a memory."""

from dataclasses import dataclass
from typing import Literal

from ampsweep.text import GIB

Objective = Literal["time", "energy"]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Least time or energy to the loss, within the memory given."""

    objective: Objective = "time"
    memory_gib: float | None = None
    """Peak of allocated tensor bytes that an arm may need on its fullest rank. None: what its device held."""

    @property
    def memory_bytes(self) -> float | None:
        return None if self.memory_gib is None else self.memory_gib * GIB
