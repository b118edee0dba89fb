"""A block: what one command measures, and what it is expected to cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from campaign.workloads import Settings

Kind = Literal["suite", "by_hand", "nanogpt", "tests"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Arms measured by one command, one after another; what of them a budget does not hold is left for the next call.

    The seconds are those that a first look at an H100 leads one to expect, rounded up.
    """

    experiment: str
    name: str
    """Unique within the campaign."""
    kind: Kind
    settings: Settings
    """Overrides of train.py, or options of a worker."""
    arms: Mapping[str, float]
    """Precision mode -> seconds, in the order in which they run."""
    start_s: float
    """Seconds of the command besides its arms."""

    def seconds(self, arms: Sequence[str]) -> float:
        """What measuring these arms is expected to take."""
        return self.start_s + sum(self.arms[arm] for arm in arms)

    def affordable(self, arms: Sequence[str], seconds: float) -> list[str]:
        """The first of these arms that so many seconds hold together."""
        chosen: list[str] = []
        for arm in arms:
            if self.seconds([*chosen, arm]) > seconds:
                break
            chosen.append(arm)
        return chosen
