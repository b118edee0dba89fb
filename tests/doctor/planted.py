"""A planted fault: a training with one thing wrong, and what the doctor is to find."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A training, by overrides of train.py, whose first finding of a complaint is known."""

    name: str
    overrides: tuple[str, ...]
    complaint: str
    kind: str
    module: str | None
    """The first module of the finding; None for one outside the model."""
    operator: str | None = None
    """The operator that it names; None where any does."""
