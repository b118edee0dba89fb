"""Lines at which the host stands between operators, seen by a second thread."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ampsweep.own_code_place import place_of_model_in_thread

_EVERY_S: Final = 0.0005
_SWITCH_S: Final = 0.0002
"""Time after which Python code hands over to another thread: the default, 5 ms, would miss shorter loops."""


@dataclass(frozen=True)
class HostPlace:
    """Code that the host runs."""

    module: str | None
    line: str | None
    """As of `place_of_caller`."""


@dataclass
class HostSamples:
    """Counts of the places at which the host stood, by the number of operators that were over."""

    position: int = 0
    """Operators that are over."""
    in_operator: bool = False
    """The host runs an operator now, or code of ours: such moments do not count."""
    seen: dict[int, Counter[HostPlace]] = field(default_factory=dict)

    def most_common(self, position: int) -> HostPlace | None:
        """The place at which the host stood most often after so many operators; None: it was not seen."""
        found = self.seen.get(position)
        return found.most_common(1)[0][0] if found else None


@contextmanager
def sampled(module: Callable[[], str | None] = lambda: None) -> Iterator[HostSamples]:
    """Sample the code that this thread runs inside, every half a millisecond.

    Args:
        module: tells the name of the module that runs now.
    """
    samples, is_over, watched = HostSamples(), threading.Event(), threading.get_ident()

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            position = samples.position
            place = HostPlace(module(), place_of_model_in_thread(watched))
            if not samples.in_operator and samples.position == position:
                samples.seen.setdefault(position, Counter())[place] += 1

    former = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(former)
