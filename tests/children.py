"""The processes that a test has left running."""

import multiprocessing
from multiprocessing.process import BaseProcess


def children() -> list[BaseProcess]:
    """Child processes that are alive, without those that joblib keeps for its next call."""
    return [child for child in multiprocessing.active_children() if "Loky" not in type(child).__name__]
