"""The reasons of a device why a run ends as unsupported before it is built."""

import torch

from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.precision import unsupported_reason, why_emulated


def why_unsupported(precision: PrecisionConfig, device: torch.device, *, searches_batch: bool) -> str | None:
    """One sentence saying why `device` cannot do a run with these settings, or None when it can.

    Args:
        searches_batch: the run is, or follows, a search for the largest batch that trains.
    """
    reason = unsupported_reason(precision, device)
    if reason is None and searches_batch and (emulated := why_emulated(precision, device)) is not None:
        return f"the largest batch of an emulation is not that of the mode: {emulated}"
    return reason
