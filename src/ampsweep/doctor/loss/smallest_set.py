"""The smallest set of suspects that mends a fault, found by few tests and proved by taking each one out."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Suspect = TypeVar("Suspect", bound=Hashable)


@dataclass(frozen=True)
class SmallestSet(Generic[Suspect]):
    """A set that mends."""

    members: tuple[Suspect, ...]
    """In the order of suspicion."""
    is_minimal: bool
    """True if the fault is back without any one of them; False if there were no tests left to see."""


class SetSearch(Generic[Suspect]):
    """A search for the smallest set that mends, among suspects in the order of suspicion.

    A set mends if all culprits are in it, so a larger one mends, too, and the smallest is the set of all culprits. Of k
    culprits among n suspects yes and no alone need about k log2(n / k) tests (D.-Z. Du and F. Hwang, "Combinatorial
    Group Testing", 1993); the order is what makes it fewer. Culprits that come first cost 2 log2(k) + k tests at most.

    Args:
        mends: the test, which takes replayed steps; the empty set is known not to mend.
        num_candidates: n of the bound.
        num_spent: replays that made the order.
    """

    def __init__(self, mends: Callable[[frozenset[Suspect]], bool], *, num_candidates: int, num_spent: int = 0) -> None:
        self._mends, self.num_candidates = mends, num_candidates
        self.num_replays = num_spent
        self._known: dict[frozenset[Suspect], bool] = {frozenset(): False}

    def bound(self, num_culprits: int) -> int:
        """The most replays that the search may take: 2 log2(n) + k."""
        return int(2 * math.log2(max(self.num_candidates, 1))) + num_culprits

    def find(
        self, ranked: Sequence[Suspect], more: Callable[[], Sequence[Suspect]] = tuple
    ) -> SmallestSet[Suspect] | None:
        """Search for the set; None if all suspects together do not mend, or if tests run out before some do.

        Args:
            ranked: suspects, the first one first.
            more: further suspects, asked for if those do not mend together.
        """
        ranked = list(ranked)
        failed, mended = self._gallop(ranked, 0)
        if mended is None and (others := [one for one in more() if one not in ranked]):
            ranked += others
            failed, mended = self._gallop(ranked, failed)
        if mended is None:
            return None
        if mended == 2 and failed == 1 and self._try({ranked[1]}):
            return SmallestSet((ranked[1],), is_minimal=True)
        while mended - failed > 1 and self._has_tests(1):
            middle = (failed + mended + 1) // 2
            if self._try(ranked[:middle]):
                mended = middle
            else:
                failed = middle
        return self._without_needless(ranked[:mended], is_last_needed=mended - failed == 1)

    def _gallop(self, ranked: Sequence[Suspect], failed: int) -> tuple[int, int | None]:
        """Find numbers of first suspects that do not mend and that do; None: not even all, or no tests are left."""
        size = failed + 1 if failed else 1
        while failed < len(ranked) and self._has_tests(1):
            size = min(size, len(ranked))
            if size == 2 == len(ranked) and failed == 1 and self._try({ranked[1]}):
                return 1, 2
            if self._try(ranked[:size]):
                return failed, size
            failed, size = size, 2 * size
        return failed, None

    def _without_needless(self, members: list[Suspect], *, is_last_needed: bool) -> SmallestSet[Suspect]:
        """Take out every member without which the fault stays away, the least suspected first."""
        needed, doubtful = ([members[-1]], members[:-1]) if is_last_needed else ([], members)
        while doubtful:
            one = doubtful[-1]
            rest = frozenset([*doubtful[:-1], *needed])
            if rest not in self._known and not self._has_tests(max(1, len(needed))):
                return SmallestSet((*doubtful, *needed), is_minimal=False)
            doubtful = doubtful[:-1]
            if not self._try(rest):
                needed = [one, *needed]
        return SmallestSet(tuple(needed), is_minimal=True)

    def _has_tests(self, num_culprits: int) -> bool:
        return self.num_replays < self.bound(num_culprits)

    def _try(self, suspects: Iterable[Suspect]) -> bool:
        key = frozenset(suspects)
        if key not in self._known:
            self.num_replays += 1
            self._known[key] = self._mends(key)
        return self._known[key]
