"""The protocol of data, as the training loop uses it, and the transfer of its batches to the device."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, both with the batch as first dimension. A user's own data may yield anything its task takes."""


@runtime_checkable
class Data(Protocol):
    """Training and validation batches, already on the device."""

    @property
    def batch_size(self) -> int:
        """Number of items in a training micro-batch."""

    @property
    def num_train_batches(self) -> int | None:
        """Number of full batches in an epoch; None for endless data, which has no epochs."""

    @property
    def tokens_per_batch(self) -> int | None:
        """Number of tokens in a training micro-batch; None where the input is not tokens."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content, without seed and batch size; of the defining parameters where the data is synthetic."""

    def train_batch(self, index: int) -> Any:
        """Micro-batch ``index`` since the start of training: a function of (seed, index) alone.

        A resumed run therefore needs no state of its data, and every arm of a comparison sees the same batches.
        """

    def val_batches(self) -> Iterator[Any]:
        """The validation batches: always the same in the same order, whatever the seed; the last may be smaller."""


@runtime_checkable
class Validatable(Protocol):
    """Data whose content can be checked in full, once before a sweep; for every run that would be too slow."""

    def validate(self) -> None:
        """Read everything; raise a ``ValueError`` for content that cannot be trained on."""


@runtime_checkable
class Stateful(Protocol):
    """Data whose next batch is no function of its index alone: a stream that has to go on where it was."""

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream after the batches that `train_batch` has returned, as plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to the device; to CUDA from pinned memory, so that the host does not wait for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def batch_to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a batch to the device; mappings become dicts, sequences tuples, other values stay."""
    if isinstance(batch, Tensor):
        return to_device(batch, device)
    if isinstance(batch, Mapping):
        return {key: batch_to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(batch_to_device(value, device) for value in batch)
    return batch
