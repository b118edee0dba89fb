"""The processes that a test has left running."""

import multiprocessing
from multiprocessing.process import BaseProcess
from typing import Final

LASTING: Final = "for all tests:"
"""The beginning of the name of a process that tests share."""


def children() -> list[BaseProcess]:
    """Child processes that are alive, without those that are kept for further tests, or by joblib for its next call."""
    found = multiprocessing.active_children()
    return [child for child in found if "Loky" not in type(child).__name__ and not child.name.startswith(LASTING)]
