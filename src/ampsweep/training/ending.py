"""The end of a training: requests to stop, the reason why it ended, and the numbers that force an end."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

COLLAPSED_SCALE = 2.0**-24
"""The smallest float16 number: a scale below it cannot be the cause of an overflow, so the loss itself is broken."""


class Stop(Protocol):
    """The protocol of a request to end the run."""

    @property
    def reason(self) -> str:
        """The source of the request, such as a signal's name; empty while there is no request."""


@dataclass(frozen=True)
class Ending:
    """The reason why training ended."""

    status: Literal["completed", "diverged", "interrupted"]
    error: str | None = None
    cut_short: str | None = None


def divergence(step: int, values: Mapping[str, float]) -> Ending | None:
    """Decide from the numbers of a row whether training must end, and how."""
    scale = values.get("amp/scale")
    if scale is not None and scale < COLLAPSED_SCALE:
        return Ending("diverged", f"the scale collapsed to {scale:g} at step {step}")
    if scale is None and not math.isfinite(values.get("train/loss", 0.0)):
        return Ending("diverged", f"the training loss is {values['train/loss']} at step {step}")
    if not math.isfinite(values.get("val/loss", 0.0)):
        return Ending("diverged", f"the validation loss is {values['val/loss']} at step {step}")
    return None
