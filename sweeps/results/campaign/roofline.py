"""The least time of a step: its matrix arithmetic at the device's dense peaks, and the bytes that it must move.

A step's kernels run one after another, so that their times add up (Williams, Waterman and Patterson, "Roofline",
CACM 52:4, 2009, one kernel at a time): matrix multiplications and convolutions at the peak of their dtype, and what
passes over parameters and gradients at the bandwidth of memory. What passes over activations is left out, so that the
bound is one that can be approached by a step of large matrix multiplications and by no step with long vectors.
"""

from dataclasses import dataclass

import torch

from ampsweep.config.modes import step_dtypes
from ampsweep.config.schema import PrecisionConfig
from ampsweep.monitors.device_peaks import dense_peak
from ampsweep.records import RunRecord
from ampsweep.speed.devices import device_of_driver


@dataclass(frozen=True)
class Moved:
    """Bytes read and written in a step by the passes over parameters and gradients."""

    casts: int
    """Casts of float32 weights to autocast's copies, and of the copies' gradients to float32."""
    unscale: int
    clipping: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.casts + self.unscale + self.clipping + self.optimizer


@dataclass(frozen=True)
class Bound:
    """The least time of a step, in milliseconds."""

    arithmetic_ms: float
    moving_ms: float

    @property
    def step_ms(self) -> float:
        return self.arithmetic_ms + self.moving_ms


def moved_bytes(record: RunRecord) -> Moved | None:
    """The bytes that a step of the run moves at least; None if no step was traced.

    For each of the parameters, of which there are as many as gradients, with the bytes of one in the mode's dtypes:

    - casts: autocast reads a weight, writes its copy, and reads the copy's gradient, in 16 bits, and writes the
      weight's: 12 bytes with copies of 16 bits, 11 with those of 8 (norms, and embeddings that are no output layer,
      stay: under 1 % of the parameters measured here);
    - unscale: reads and writes the gradient once, under a scaler only;
    - clipping: a norm reads the gradient, scaling reads and writes it, with `trainer.max_grad_norm` only; by value,
      first from below and then from above, reads and writes it twice, with `trainer.max_grad_value` only;
    - optimizer: reads the gradient, and reads and writes the weight, or the master weight, of which it then writes the
      parameter, and what the class keeps for it: a momentum of SGD, two moments of AdamW. A fused one that gets the
      scale, because nothing unscaled before (no clipping), writes the unscaled gradient back. GradScaler has then only
      looked for infinities, but by the kernel that unscales, which writes too.
    """
    held = record.memory.end_of_forward
    if held is None:
        return None
    config = record.config
    precision = PrecisionConfig(**config["precision"])
    dtypes = step_dtypes(precision)
    parameter, gradient = _num_bytes(dtypes.parameters), _num_bytes(dtypes.gradients)
    state = _num_bytes(config["optimizer"].get("state_dtype") or dtypes.optimizer_state)
    has_master = dtypes.optimizer_state != dtypes.parameters
    num_states = 2 if config["optimizer"]["name"] == "adamw" else 1 if config["optimizer"].get("momentum") else 0
    by_norm = config["trainer"]["max_grad_norm"] is not None
    by_value = config["trainer"].get("max_grad_value") is not None
    updated = gradient + (2 * 4 + parameter if has_master else 2 * parameter) + 2 * num_states * state
    if precision.grad_scaler and record.proof.optimizer_fused and not (by_norm or by_value):
        updated += gradient
    num = held.get("parameters", 0) // parameter
    return Moved(
        casts=num * (4 + _num_bytes(dtypes.compute) + 2 + 4) if precision.autocast else 0,
        unscale=num * 2 * gradient if precision.grad_scaler else 0,
        clipping=num * (3 * by_norm + 4 * by_value) * gradient,
        optimizer=num * updated,
    )


def _num_bytes(dtype: str) -> int:
    size: int = getattr(torch, dtype).itemsize
    return size


def bound(record: RunRecord) -> Bound | None:
    """The least time of a step of the run on its device.

    None where no step was traced, or the table does not know the device or a dtype on it.
    """
    name, moved = record.identity.device_name, moved_bytes(record)
    if name is None or moved is None:
        return None
    flops = dict(record.proof.flops or {})
    if record.config["precision"]["tf32"] and "float32" in flops:
        flops["tf32"] = flops.pop("float32")
    peak, device = dense_peak(name, flops), device_of_driver(name)
    if peak is None or device is None:
        return None
    moving_ms = moved.total / 1e6 / device.bandwidth_gb_per_sec
    return Bound(sum(flops.values()) / 1e9 / peak.tflops_per_sec, moving_ms)
