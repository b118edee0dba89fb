"""The fault that ends a training on several ranks: the first that one of them has."""

from dataclasses import dataclass

from ampsweep.record.outcome import OutOfMemory, Status


@dataclass(frozen=True, kw_only=True)
class RankFault:
    """The reason why a rank cannot go on, and with it no other."""

    rank: int
    status: Status
    error: str
    """One sentence, without the rank."""
    oom: OutOfMemory | None = None
    traceback: str | None = None
    is_guess: bool = False
    """The rank could not tell by itself: others found it gone, and who started it may know more."""

    @property
    def sentence(self) -> str:
        return f"rank {self.rank}: {self.error}"


class OtherRankError(RuntimeError):
    """Raised on a rank that cannot go on because of another's fault."""

    def __init__(self, fault: RankFault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault
