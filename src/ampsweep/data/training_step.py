"""The training step that a batch is made for: data, collate functions and tasks may ask for it, as curricula do."""

from collections.abc import Iterator
from contextlib import contextmanager


class CurrentStep:
    """The step of this process or worker, as the trainer sets it."""

    number = 0
    batches = (1, 0, 1)  # a step, this rank's first micro-batch of it, and their number in each step


def training_step() -> int:
    """Return the number, from 1, of the training step that this code makes a batch for, or is a part of.

    In a dataset and `collate` it is the step that takes the batch, however far ahead it is read, in any worker; in a
    task's `loss` and `after_step` the current step. In validation, and outside of a training, it is 0.
    """
    return CurrentStep.number


@contextmanager
def made_for(index: int | None) -> Iterator[None]:
    """Let `training_step` return the step of this rank's micro-batch `index` inside; None: of no step."""
    (step, first, per_step), before = CurrentStep.batches, CurrentStep.number
    CurrentStep.number = 0 if index is None else max(1, step + (index - first) // per_step)
    try:
        yield
    finally:
        CurrentStep.number = before
