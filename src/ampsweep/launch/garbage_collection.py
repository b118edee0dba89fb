"""Python's garbage collector, kept away from what never becomes garbage: the modules of torch and its like.

Looking through them again and again takes a fifth of a start, and some of the steps of a training.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """A time of many imports: nothing is collected inside until `collect_new_garbage_only`."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_new_garbage_only() -> None:
    """Collect again from here on, without looking at anything that exists now."""
    gc.freeze()
    gc.enable()
