"""The part that a rank has of an order of micro-batches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Share:
    """Every `world_size`-th micro-batch of an order, from micro-batch `rank` on.

    A step of so many ranks, with any number of micro-batches each, so takes the next items of the order, whichever of
    the ranks gets which.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size

    def index(self, own: int) -> int:
        """The index in the whole order of the rank's own micro-batch `own`."""
        return own * self.world_size + self.rank

    def num_batches(self, number: int | Fraction | None) -> int | Fraction | None:
        """Number of the rank's own batches among so many; a fraction where it is not whole."""
        if number is None:
            return None
        found = number / Fraction(self.world_size)
        return found.numerator if found.denominator == 1 else found

    def num_rounds(self, number: int) -> int:
        """Number of rounds in which the ranks take so many batches, one each, but some none in the last."""
        return -(-number // self.world_size)

    def rounds(self, number: int) -> Iterator[tuple[int, bool]]:
        """Yield the rank's batch of each round, and that it counts; batch 0, which does not, where none is left."""
        for own in range(self.num_rounds(number)):
            index = self.index(own)
            yield (index, True) if index < number else (0, False)

    def dealt(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
        """Yield the rank's batch of each round, and that it counts; the round's first, which does not, for none."""
        of_round: list[Batch] = []
        """The round's first batch, until the rank's own comes."""
        for index, batch in enumerate(batches):
            place = index % self.world_size
            if place == 0:
                of_round = [batch]
            if place == self.rank:
                of_round = []
                yield batch, True
        for batch in of_round:
            yield batch, False


WHOLE = Share()
"""The share of a single process."""
