"""Compiled kernels on a device that exists in sizes only: what they make for themselves is not seen there either."""

from collections.abc import Iterator
from contextlib import contextmanager

from ampsweep.tracing.feeding import StorageCounter


@contextmanager
def unseen() -> Iterator[None]:
    """Enclose operators that stand for compiled kernels, whose results are kept: no trace of this thread sees them."""
    counters = [counter for counter in StorageCounter._entered if not counter.is_blind]
    for counter in counters:
        counter.is_blind = True
    try:
        yield
    finally:
        for counter in counters:
            counter.is_blind = False
