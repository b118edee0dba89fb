"""Control of Python's garbage collector: it is kept away from what never becomes garbage, such as torch's modules.

Scanning them again and again takes a fifth of the start-up time, and some time of a training's steps.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Collect no garbage inside, where many modules are imported, until `collect_new_garbage_only`."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_new_garbage_only() -> None:
    """Resume garbage collection, without looking at any object that exists now."""
    gc.freeze()
    gc.enable()
    atexit.unregister(_thaw_for_nanobind)
    atexit.register(_thaw_for_nanobind)


def _thaw_for_nanobind() -> None:
    """Let the interpreter's end collect everything where a library is bound by nanobind, as triton is from 3.9 on.

    nanobind reports what is left of its objects as leaked, in 30 lines on stderr. Elsewhere the process ends sooner
    without that collection.
    """
    if any(type(one).__module__ == "nanobind" for one in object.__subclasses__()):
        gc.unfreeze()
