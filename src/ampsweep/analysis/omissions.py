"""What a comparison had to do without because a file of a run could not be read, or not in full."""

from dataclasses import dataclass
from typing import Final, Literal

OmissionKind = Literal["not readable", "no history", "damaged history", "not finite"]

CONSEQUENCES: Final[dict[OmissionKind, str]] = {
    "not readable": "left out",
    "no history": "no curves, no time to a loss",
    "damaged history": "its curves are of what is left, no time to a loss",
    "not finite": "gaps in its curves",
}


@dataclass(frozen=True, kw_only=True)
class Omission:
    """One file of which something is missing in the comparison. `reason` is a clause that follows the path."""

    path: str
    kind: OmissionKind
    reason: str

    @property
    def consequence(self) -> str:
        """What follows for the comparison."""
        return CONSEQUENCES[self.kind]
