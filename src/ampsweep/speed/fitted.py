"""The parameters of the speed model, as fitted to `sweeps/results/published/measurements.csv`."""

from typing import Final

from ampsweep.speed.kernel_times import Parameters

FITTED: Final = Parameters(
    watts={"pascal": 2.0, "volta": 2.2, "turing": 2.4, "ampere": 2.0, "ada": 2.0, "hopper": 3.0, "blackwell": 3.0},
    tensor_share={"volta": 0.55, "turing": 0.6, "ampere": 0.8, "ada": 0.8, "hopper": 0.7, "blackwell": 0.7},
    float32_share=0.83,
    convolution_share=0.9,
    channels_first_share=0.8,
    winograd=1.3,
    grouped_share=0.1,
    misaligned_share=0.5,
    attention_share=0.5,
    tile_us=0.5,
    tile_bytes_per_clock=64.0,
    bandwidth_share=0.8,
    l2_speed=2.0,
    strided_share=0.8,
    elements_per_clock={"elementwise": 2.2, "normalization": 0.6, "softmax": 0.6, "reduction": 0.6},
    kernel_us=2.0,
    forward_us=25.0,
    backward_us=12.0,
    step_us=3000.0,
)
STEP_SPREAD: Final = 0.15
"""Standard deviation of the logarithm of measured over predicted step times, of devices that were not fitted."""
SPEEDUP_SPREAD: Final = 0.1
EXTRAPOLATED_SPREAD: Final = 0.4
"""The same of step times where neither the architecture of the device nor the kind of work was fitted."""
FITTED_ARCHITECTURES: Final = ("pascal", "volta", "turing", "ampere")
