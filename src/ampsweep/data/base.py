"""The protocol of data, as the training loop uses it, and the transfer of its batches to the device."""

from collections.abc import Callable, Iterator, Mapping
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

    def load_state_dict(self, state: dict[str, Any]) -> list[str] | None:
        """Go on from there; may return sentences for the user on how."""


def stop_workers(data: object) -> None:
    """End the processes that data has started, if it can have any; reading on may start them again."""
    if (end := getattr(data, "stop_workers", None)) is not None:
        end()


def num_workers(data: object) -> int | None:
    """Number of processes that read training batches ahead; None where data has not chosen yet or never has any."""
    found = getattr(data, "num_workers", None)
    return found if isinstance(found, int) else None


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to the device; to CUDA from pinned memory, so that the host does not wait for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def batch_to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a batch to the device; mappings become dicts, sequences tuples, other values stay."""
    return map_batch(batch, lambda tensor: tensor if tensor.device == device else to_device(tensor, device))


def map_batch(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in a batch; mappings become dicts, sequences tuples, other values stay."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, (list, tuple)):
        return tuple([map_batch(value, change) for value in batch])
    if isinstance(batch, Mapping):
        return {key: map_batch(value, change) for key, value in batch.items()}
    return batch
