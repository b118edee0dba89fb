"""The front of speed, memory and loss in words."""

from typing import Final

from ampsweep.analysis.costs import CostKind
from ampsweep.analysis.front import Axis, Beaten, Front

COSTS: Final[dict[CostKind, str]] = {
    "time to loss": "time to the loss",
    "energy to loss": "energy to the loss",
    "step time": "step time",
    "energy of a sample": "energy of a sample",
}
"""The names of costs."""

_MORE: Final[dict[CostKind, str]] = {
    "time to loss": "later at the loss",
    "energy to loss": "more energy to the loss",
    "step time": "slower",
    "energy of a sample": "more energy",
}


def front_line(of: Front) -> str:
    """The arms on the front, and the beaten ones with the arm that beats them and in what."""
    beaten: dict[Beaten, list[str]] = {}
    for one in of.arms:
        if one.beaten is not None:
            beaten.setdefault(one.beaten, []).append(one.arm)
    told = [f"{', '.join(arms)} by {beaten_by(by, of.cost)}" for by, arms in beaten.items()]
    on_front = f"on the front: {', '.join(one.arm for one in of.unbeaten)}"
    return f"{on_front}; beaten: {'; '.join(told)}" if told else f"{on_front}; none is beaten"


def beaten_by(of: Beaten, cost: CostKind) -> str:
    """The arm that beats another one, and where that one is worse: 'amp_bf16 (slower, more memory)'."""
    worse: dict[Axis, str] = {"cost": _MORE[cost], "memory": "more memory", "loss": "worse loss"}
    return f"{of.by} ({' and '.join(worse[axis] for axis in of.worse_in)})"
