"""The speed model's parameters and its errors, as `sweeps/results/published/fit.py` has found them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from ampsweep.speed.kernel_times import Parameters

WorkClass = Literal["product", "convolution", "grouped convolution", "moving", "small", "not measured"]
"""`small`: kernels too short to fill the device; `not measured`: fused attention, recurrent layers and float8."""
Class = Literal["step", WorkClass, "launching", "unknown chip"]


@dataclass(frozen=True)
class Fit:
    parameters: Parameters
    spreads: Mapping[Class, float]
    """Standard deviations of the logarithm of measured over predicted step times, on GPUs that the fit had not seen, by
    the class of work that a step is made of; `step` is in all, `unknown chip` in those on chips not among `chips`."""
    correlation: float  # of the errors of two modes on a device
    chips: tuple[str, ...]  # that were measured


FIT: Final = msgspec.json.decode(Path(__file__).with_name("fitted.json").read_bytes(), type=Fit)
FITTED: Final = FIT.parameters
