"""The categories of a training step's memory, and their metric keys."""

from typing import Final, Literal

MemoryCategory = Literal[
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "autocast_weights",
    "communication",
    "temporary",
    "data",
    "other",
]

MEMORY_CATEGORIES: Final[dict[MemoryCategory, str]] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations and autocast's copies of a batch",
    "autocast_weights": "half-precision copies of weights",
    "communication": "buckets of gradients, gathered parameters and what else ranks exchange",
    "temporary": "temporaries",
    "data": "data set resident on an accelerator",
    "other": "everything else",
}
"""Category -> meaning, in the order in which reports stack them."""


def memory_key(category: str) -> str:
    return f"memory/{category}_gib"
