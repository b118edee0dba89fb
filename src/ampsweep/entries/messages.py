"""What a training process tells the process that shows it to the user."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """A training has come to `step` of `num_steps`."""

    step: int
    num_steps: int
    loss: float


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the user."""

    text: str
