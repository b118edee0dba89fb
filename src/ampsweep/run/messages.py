"""What a training process tells the process that shows it to the user."""

from dataclasses import dataclass

from ampsweep.record.batch_search import Probe


@dataclass(frozen=True, slots=True)
class Progress:
    """A training has come to `step` of `num_steps`; None: not known yet, or never."""

    step: int
    num_steps: int
    loss: float | None = None
    scale: float | None = None
    peak_memory_gib: float | None = None
    """The peak of allocated tensor bytes so far."""


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Probed:
    """What became of a batch size on a device; no `probe` where the device cannot do the precision mode."""

    device: str
    device_name: str | None
    probe: Probe | None
