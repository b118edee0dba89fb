"""The protocol of data as the training loop uses it, its division among ranks, and the form of its batches."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ampsweep.nested_tensors import map_tensors

Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """A rank's micro-batches: every `world_size`-th of an order, from micro-batch `rank` on."""

    rank: int = 0
    world_size: int = 1

    def index(self, own: int) -> int:
        """The index in the whole order of the rank's own micro-batch `own`."""
        return own * self.world_size + self.rank

    def num_batches(self, number: int | Fraction | None) -> Fraction | None:
        """The rank's part of a number of batches."""
        return None if number is None else Fraction(number) / self.world_size

    def dealt(self, batches: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
        """Yield the rank's batch of each round, and whether it counts: the round's first batch stands in for none."""
        first_of_round: list[Item] = []  # the round's first batch, until the rank's own comes
        for index, batch in enumerate(batches):
            place = index % self.world_size
            if place == 0:
                first_of_round = [batch]
            if place == self.rank:
                first_of_round = []
                yield batch, True
        for batch in first_of_round:
            yield batch, False


WHOLE = Share()

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, both with the batch as first dimension. A user's own data may yield anything its task takes."""

Collate = Callable[[list[Any]], Any]  # makes a batch of a list of items, as torch's `default_collate` does


@runtime_checkable
class Data(Protocol):
    """Training and validation batches, already on the device."""

    @property
    def batch_size(self) -> int:
        """Number of items in a training micro-batch."""

    @property
    def num_train_batches(self) -> int | Fraction | None:
        """Number of micro-batches in an epoch, maybe a fraction: batches may cross its end. None without epochs."""

    @property
    def tokens_per_batch(self) -> int | None:
        """Number of tokens in a training micro-batch; None if the input is not tokens."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content, without seed and batch size; of the parameters of synthetic data."""

    def train_batch(self, index: int) -> Any:
        """Micro-batch ``index`` since the start of training: a function of (seed, index) alone.

        It has the items from ``index * batch_size`` on of an order that depends on the seed alone: every arm sees the
        same batches, a resumed run needs no state of its data, and a step has the same samples however many processes
        and micro-batches share them.
        """

    def val_batches(self) -> Iterator[Any]:
        """The validation batches, always the same in the same order for every seed; the last may be smaller.

        Data with several validation sets has `val_names`, of which it takes one here; without it yields the first's.
        """


@runtime_checkable
class Divisible(Protocol):
    """Data that divides itself among ranks because it is read ahead; any other is divided by index."""

    def for_rank(self, share: Share) -> Data:
        """The data as a rank sees it."""

    def val_rounds(self, *name: str) -> Iterator[tuple[Any, bool]]:
        """The rank's validation batches (of the set `name`, if there are several), and whether each counts.

        Every rank has as many, since a sharded model computes on all ranks or on none. Each batch counts on one rank;
        in an incomplete last round the other ranks get a batch that does not count.
        """


def for_rank(data: Data, rank: int, world_size: int) -> Data:
    """The data as a rank sees it: its micro-batch i is micro-batch i * world_size + rank of the whole order."""
    if world_size == 1:
        return data
    share = Share(rank, world_size)
    return data.for_rank(share) if isinstance(data, Divisible) else _DividedByIndex(data, share)


def val_sets(data: Data) -> dict[str, Iterator[tuple[Any, bool]]]:
    """The validation batches of each set, and whether each counts (in a single process all do), by the set's name,
    which is empty if there is only one."""

    def rounds(*name: str) -> Iterator[tuple[Any, bool]]:
        if isinstance(data, Divisible | _DividedByIndex):
            return data.val_rounds(*name)
        return ((batch, True) for batch in data.val_batches(*name))

    return {name: rounds(name) for name in getattr(data, "val_names", ())} or {"": rounds()}


def named_sets(val: Any) -> dict[tuple[str, ...], Any]:
    """The validation sets by `("val", NAME)`, or `("val",)`. ValueError: a name that cannot be part of a key."""
    if not isinstance(val, Mapping):
        return {("val",): val}
    for name in val:
        if not re.fullmatch(r"[\w.-]+", str(name)):
            raise ValueError(f"val.{name}: the name of a validation set has letters, digits, '_', '-' and '.' only")
    return {("val", str(name)): dataset for name, dataset in val.items()}


class _DividedByIndex:
    """A rank's part of data whose batches are functions of their index; all other attributes are the data's."""

    def __init__(self, data: Data, share: Share) -> None:
        self._data, self._share = data, share
        self.batch_size, self.tokens_per_batch = data.batch_size, data.tokens_per_batch
        self.num_train_batches, self.fingerprint = share.num_batches(data.num_train_batches), data.fingerprint

    def __getattr__(self, name: str) -> Any:
        if name == "_data":  # a copy in the making does not have it yet
            raise AttributeError(name)
        return getattr(self._data, name)

    def train_batch(self, index: int) -> Any:
        return self._data.train_batch(self._share.index(index))

    def val_batches(self, *name: str) -> Iterator[Any]:
        return (batch for batch, _ in self.val_rounds(*name))

    def val_rounds(self, *name: str) -> Iterator[tuple[Any, bool]]:
        data: Any = self._data
        if not name and hasattr(data, "num_val_batches") and hasattr(data, "val_batch"):  # without those of the others
            for index, counts in self._share.dealt(range(data.num_val_batches)):
                yield data.val_batch(index), counts
        else:
            yield from self._share.dealt(self._data.val_batches(*name))


def stop_workers(data: object) -> None:
    """End the processes that data has started, if any; reading on may start them again."""
    if (stop := getattr(data, "stop_workers", None)) is not None:
        stop()


def num_workers(data: object) -> int | None:
    """Number of processes that read training batches ahead; None if the data never has any."""
    found = getattr(data, "num_workers", None)
    return found if isinstance(found, int) else None


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to the device; to CUDA from pinned memory, so that the host does not wait for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def batch_to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a batch to the device; a list becomes a tuple, other values stay."""
    return map_batch(batch, lambda tensor: tensor if tensor.device == device else to_device(tensor, device))


def map_batch(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in a batch; a list becomes a tuple, other values stay."""
    changed = map_tensors(batch, change)
    return tuple(changed) if type(changed) is list else changed


def as_model_input(batch: Any, dtype: torch.dtype, *, channels_last: bool) -> Any:
    """Convert a batch's floating-point tensors to `dtype` and, on request, images (N, C, H, W) to channels-last."""
    if type(batch) is tuple and not channels_last:  # a fast path for the usual batch, which needs no change
        for value in batch:
            if not isinstance(value, Tensor) or (value.dtype != dtype and value.is_floating_point()):
                break
        else:
            return batch

    def converted(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        if channels_last and tensor.dim() == 4:
            return tensor.to(dtype, memory_format=torch.channels_last)
        return tensor.to(dtype)

    return map_tensors(batch, converted)
