"""What the training loop asks of data."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, both with the batch as first dimension. A user's own data may yield whatever its task takes."""


@runtime_checkable
class Data(Protocol):
    """Training and validation batches, already on the device."""

    @property
    def batch_size(self) -> int:
        """Items in a training micro-batch."""

    @property
    def num_train_batches(self) -> int | None:
        """Batches in an epoch, an incomplete last one dropped; None where data is endless and has no epochs."""

    @property
    def tokens_per_batch(self) -> int | None:
        """Tokens in a training micro-batch; None where the input is not tokens."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content, not of seed or batch size; of the defining parameters where the data is synthetic."""

    def train_batch(self, index: int) -> Any:
        """Micro-batch ``index`` counted from the start of training: a function of (seed, index) alone.

        So a resumed run needs no state of its data, and every arm of a comparison sees the same batches.
        """

    def val_batches(self) -> Iterator[Any]:
        """The validation batches: each time the same, in the same order, whatever the seed; the last may be smaller."""


@runtime_checkable
class Validatable(Protocol):
    """Data whose content can be checked in full, which is too slow for every run: once before a sweep."""

    def validate(self) -> None:
        """Read everything; content that cannot be trained on is a ``ValueError``."""
