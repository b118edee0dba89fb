"""Agreement of the ranks of a training on what they do together with files: it fails on all of them, or on none."""

from collections.abc import Callable
from typing import Any, TypeVar

from ampsweep.parallel.base import Parallel
from ampsweep.parallel.faults import OtherRankError, RankFault
from ampsweep.text import one_line

T = TypeVar("T")


def together(ranks: Parallel, part: Callable[[], T]) -> list[T]:
    """Do this rank's part; return what came of all parts, in the order of ranks.

    Without it, a rank whose disk is full would go its way, and the others would wait for it in their next collective.

    Raises:
        OSError: the system's error, on all ranks, if a part met one.
        Exception: this rank's own error.
        OtherRankError: what another rank's part raised.
    """
    value: T | None = None
    error: Exception | None = None
    try:
        value = part()
    except Exception as raised:  # noqa: BLE001  whatever it is, the other ranks are waiting
        error = raised
    outcomes: list[tuple[Any, tuple[Any, ...] | str | None]] = ranks.gather((value, _told(error)))
    if error is not None:
        raise error
    for rank, (_, told) in enumerate(outcomes):
        if isinstance(told, tuple):
            raise OSError(*told)
        if told is not None:
            raise OtherRankError(RankFault(rank=rank, status="failed", error=told))
    return [value for value, _ in outcomes]


def _told(error: Exception | None) -> tuple[Any, ...] | str | None:
    """The error as it is sent: the parts of a system's error, a line of any other."""
    if isinstance(error, OSError):
        return error.errno, error.strerror, error.filename
    return None if error is None else one_line(error)
