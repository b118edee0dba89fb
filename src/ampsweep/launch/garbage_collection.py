"""Python's garbage collector, kept away from what never becomes garbage: the modules of torch and its like.

Looking through them again and again takes a fifth of a start, and some of the steps of a training.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Nothing is collected inside until `resume_collector`, for a time of many imports."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def resume_collector() -> None:
    """From here on collect again, without looking at anything that exists now."""
    gc.freeze()
    gc.enable()
