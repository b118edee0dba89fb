"""Garbage collection without scans of permanent objects such as torch's modules, a fifth of the start-up time."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, for the import of many modules."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_new_garbage_only() -> None:
    """Resume garbage collection, without the objects that exist now."""
    gc.freeze()
    gc.enable()
    atexit.unregister(_thaw_for_nanobind)
    atexit.register(_thaw_for_nanobind)


def _thaw_for_nanobind() -> None:
    # nanobind (triton from 3.9 on) reports uncollected objects as leaks, in 30 lines on stderr; elsewhere the process
    # ends sooner without that collection.
    if any(type(kind).__module__ == "nanobind" for kind in object.__subclasses__()):
        gc.unfreeze()
