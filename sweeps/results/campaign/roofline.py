"""The least time of a step: its matrix arithmetic at the device's dense peaks, and the bytes that it must move.

A step's kernels run one after another, so that their times add up (Williams, Waterman and Patterson, "Roofline",
CACM 52:4, 2009, one kernel at a time): matrix multiplications and convolutions at the peak of their dtype, and what
passes over parameters and gradients at the bandwidth of memory. What passes over activations is left out, so that the
bound is one that can be approached by a step of large matrix multiplications and by no step with long vectors.
"""

from dataclasses import dataclass

from ampsweep.monitors.device_peaks import dense_peak, memory_bytes_per_sec
from ampsweep.record import RunRecord


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

    With P bytes of parameters and as many of gradients:

    - casts: autocast reads P and writes copies of P / 2, and their gradients go the other way: 3 P, under autocast
      only (norms, and embeddings that are no output layer, stay: under 1 % of the parameters measured here);
    - unscale: reads and writes the gradients once: 2 P, under a scaler only;
    - clipping: a norm reads P, scaling reads and writes it: 3 P, with `trainer.max_grad_norm` only; by value, first
      from below and then from above, reads and writes it twice: 4 P, with `trainer.max_grad_value` only;
    - optimizer: SGD reads parameters and gradients and writes parameters: 3 P; a momentum is read and written too: 5 P;
      AdamW reads parameters, gradients and two moments and writes all but the gradients: 7 P. A fused one that gets the
      scale, because nothing unscaled before (no clipping), writes the unscaled gradients back: P more. GradScaler has
      then only looked for infinities, but by the kernel that unscales, which writes too.
    """
    held = record.memory.end_of_forward
    if held is None:
        return None
    parameters = held.get("parameters", 0)
    config = record.config
    by_norm = config["trainer"]["max_grad_norm"] is not None
    by_value = config["trainer"].get("max_grad_value") is not None
    passes = 7 if config["optimizer"]["name"] == "adamw" else 5 if config["optimizer"].get("momentum") else 3
    if config["precision"]["grad_scaler"] and record.proof.optimizer_fused and not (by_norm or by_value):
        passes += 1
    return Moved(
        casts=3 * parameters if config["precision"]["autocast"] else 0,
        unscale=2 * parameters if config["precision"]["grad_scaler"] else 0,
        clipping=(3 * by_norm + 4 * by_value) * parameters,
        optimizer=passes * parameters,
    )


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
    peak, bytes_per_sec = dense_peak(name, flops), memory_bytes_per_sec(name)
    if peak is None or bytes_per_sec is None:
        return None
    return Bound(sum(flops.values()) / 1e9 / peak.tflops_per_sec, 1e3 * moved.total / bytes_per_sec)
