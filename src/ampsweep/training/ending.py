"""The end of a training: who may ask for it, why it came, and which numbers call for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

COLLAPSED_SCALE = 2.0**-24
"""Below the smallest float16 number no scale can be the cause of an overflow: what is left is a broken loss."""


class Stop(Protocol):
    """A request to end the run."""

    @property
    def reason(self) -> str:
        """The name of what asked for it; empty while nothing did."""


@dataclass(frozen=True)
class Ending:
    """The reason why training ended."""

    status: Literal["completed", "diverged", "interrupted"]
    error: str | None = None
    cut_short: str | None = None


def divergence(step: int, values: Mapping[str, float]) -> Ending | None:
    """The ending that the numbers of a row call for."""
    scale = values.get("amp/scale")
    if scale is not None and scale < COLLAPSED_SCALE:
        return Ending("diverged", f"the scale collapsed to {scale:g} at step {step}")
    if scale is None and not math.isfinite(values.get("train/loss", 0.0)):
        return Ending("diverged", f"the training loss is {values['train/loss']} at step {step}")
    if not math.isfinite(values.get("val/loss", 0.0)):
        return Ending("diverged", f"the validation loss is {values['val/loss']} at step {step}")
    return None
