"""A Weights & Biases experiment suite for mixed precision."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampsweep.integrations.own_training import OwnTraining as record  # noqa: N813 - read as a verb: `with ampsweep.record(...) as run`

__version__ = "0.1.0"
__all__ = ["__version__", "record"]


def __getattr__(name: str) -> Any:
    """Import `record`, and with it torch, when it is used."""
    if name != "record":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ampsweep.integrations.own_training import OwnTraining

    return OwnTraining
