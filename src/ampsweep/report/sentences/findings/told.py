"""A finding in words."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Told:
    """The sentences of one finding, as terminal, page and JSON show them. None ends with a full stop."""

    headline: str
    """One sentence: the fault and where it is."""
    evidence: list[str] = field(default_factory=list)
    """A sentence for each thing that was measured."""
    change: str | None = None
    """One sentence: the smallest change that mends it, without the override or code, which follow it as they are."""
    proof: str | None = None
    """One sentence: what the change did when it was tried."""
