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


def around(inner: str, *more: str, file: str, width: int, batch_size: int = 8) -> tuple[str, ...]:
    """A training of the `Net` of a file around one of its modules."""
    return (
        "model=custom",
        f"model._target_={file}.Net",
        f"+model.inner={inner}",
        "data=synthetic",
        f"data.in_features={width}",
        "data.out_features=1",
        f"data.batch_size={batch_size}",
        "task=regression",
        *more,
    )
