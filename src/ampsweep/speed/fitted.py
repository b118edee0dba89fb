"""The parameters of the speed model, as fitted to `sweeps/results/published/measurements.csv`."""

from collections.abc import Mapping
from typing import Final, Literal

from ampsweep.speed.kernel_times import Parameters

FITTED: Final = Parameters(
    watts={
        "6.0": 2.0,
        "6.1": 1.6,
        "7.0": 2.2,
        "7.5": 2.4,
        "8.0": 2.6,
        "8.6": 2.0,
        "8.9": 2.0,
        "9.0": 3.0,
        "10.0": 3.0,
        "10.3": 3.0,
        "12.0": 2.5,
    },
    tensor_share={
        "7.0": 0.65,
        "7.5": 0.65,
        "8.0": 0.8,
        "8.6": 0.9,
        "8.9": 0.9,
        "9.0": 0.7,
        "10.0": 0.7,
        "10.3": 0.7,
        "12.0": 0.9,
    },
    float32_share=0.83,
    convolution_share={
        "half": 0.9,
        "half channels first": 0.7,
        "tf32": 0.7,
        "half emulated": 0.7,
        "float32": 0.9,
        "float32 3x3": 1.2,
    },
    overlap=4.0,
    grouped_share={"half": 0.3, "half channels first": 0.2, "float32": 0.3},
    misaligned_share=0.5,
    attention_share=0.5,
    tile_us=0.5,
    tile_bytes_per_clock=64.0,
    bandwidth_share=0.8,
    l2_speed=2.0,
    strided_share=0.8,
    elements_per_clock={
        "elementwise": 2.2,
        "normalization": 0.6,
        "softmax": 0.6,
        "batch_norm": 1.5,
        "transcendental": 2.0,
        "reduction": 0.6,
    },
    kernel_us=3.0,
    forward_us=25.0,
    backward_us=12.0,
    compiled_us=6.0,
    step_us=5000.0,
)
Class = Literal["step", "product", "convolution", "grouped convolution", "moving", "launching", "unknown chip"]
SPREADS: Final[Mapping[Class, float]] = {
    "step": 0.05,
    "product": 0.05,
    "convolution": 0.1,
    "grouped convolution": 0.4,
    "moving": 0.1,
    "launching": 0.3,
    "unknown chip": 0.2,
}
"""Standard deviations of the logarithm of measured over predicted step times, of devices that the fit had not seen, by
the class of work that a step is made of; `step` is in all, `unknown chip` in those on chips nothing was fitted to."""
CORRELATION: Final = 0.5  # of the errors of two modes on a device
FITTED_CHIPS: Final = ("6.1", "7.0", "7.5", "8.0", "8.6")
