"""Any of torch's iterable datasets as data of the suite."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import batch_to_device
from ampsweep.data.copied_ahead import CopiedAhead
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.item_batches import Collate
from ampsweep.data.seeded_reading import SeededReading
from ampsweep.data.stream_reader import StreamReader
from ampsweep.data.worker_processes import why_not_sent
from ampsweep.data.worker_settings import ReadTiming, WorkerSettings

_NUM_SAMPLES: Final = 8
_END: Final = object()


class StreamDataset:
    """A pair of the user's own ``torch.utils.data.IterableDataset``; ``collate`` makes batches of their items.

    The stream is endless: where it ends it begins again, with ``set_epoch`` if the dataset has that, and the items of
    a last batch that is not full are dropped. ``train_batch`` goes forwards; any other index begins from the start.
    Generators are seeded as in a ``MapDataset``. A worker reads the same batches as this process; several, whose
    dataset tells by ``get_worker_info`` which items are theirs, take turns, and their number is part of what a batch
    is. The fingerprint covers class names and the first eight items of each set.
    """

    tokens_per_batch: int | None = None
    num_train_batches: int | None = None
    copies_ahead = True
    """On CUDA the batch after the current one is on the device, if its items are large: see ``CopiedAhead``."""

    def __init__(
        self,
        *,
        train: IterableDataset[Any],
        val: IterableDataset[Any],
        batch_size: int,
        seed: int,
        device: torch.device,
        num_val_batches: int | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        collate: Collate = default_collate,
    ) -> None:
        """Take the two datasets and read their first items.

        ``num_val_batches``: validation ends after so many batches; None: with the dataset. ``num_workers``: None is 0,
        or 1 where reading takes longer than handing over.

        Raises:
            ValueError: a dataset is not iterable or has no items, a setting of the workers is out of range, or what
                they need cannot be sent to them.
        """
        require_positive(batch_size=batch_size)
        settings = WorkerSettings(num_workers, prefetch_factor)
        for name, dataset in (("train", train), ("val", val)):
            if not isinstance(dataset, IterableDataset):
                raise ValueError(f"{name} must be a torch IterableDataset, got {type(dataset).__name__}")
        timing = ReadTiming()
        self.fingerprint = digest(_fingerprint("train", train, timing), _fingerprint("val", val, ReadTiming()))
        reason = why_not_sent(train, collate)
        if num_workers and reason is not None:
            raise ValueError(f"num_workers={num_workers}: {reason}")
        if num_workers is None:
            num_workers = 0 if reason is not None else min(1, timing.num_workers(device, batch_size))
        self.num_workers = 0 if device.type == "meta" else num_workers  # a device without values is a prediction's
        self.batch_size = batch_size
        self._val, self._num_val_batches, self._collate = val, num_val_batches, collate
        self._device = device
        self._delivered = -1
        self._reader = StreamReader(
            train,
            batch_size=batch_size,
            collate=collate,
            seed=seed,
            num_workers=self.num_workers,
            prefetch_factor=settings.prefetch_factor,
            pins=device.type == "cuda",
        )
        self._batches = CopiedAhead(self._reader, batch_size, device)

    def train_batch(self, index: int) -> Any:
        """Micro-batch ``index`` of the stream."""
        batch = self._batches(index)
        self._delivered = index
        return batch

    def val_batches(self) -> Iterator[Any]:
        """The batches of one pass; the last may be smaller."""
        reading, items = SeededReading(can_repeat=False), iter(self._val)
        for index in itertools.count():
            if index == self._num_val_batches:
                return
            batch = reading(lambda: list(itertools.islice(items, self.batch_size)), "val", index)
            if not batch:
                return
            yield batch_to_device(self._collate(batch), self._device)

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream after the batch that was delivered last."""
        return self._reader.state_dict(self._delivered + 1)

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Go on after that batch; returns sentences for the user on how."""
        self._delivered = state["next_batch"] - 1
        self._batches.close()
        return self._reader.load_state_dict(state)

    def stop_workers(self) -> None:
        """End the workers."""
        self._batches.close()
        self._reader.stop_workers()


def _fingerprint(name: str, dataset: IterableDataset[Any], timing: ReadTiming) -> str:
    reading, found = SeededReading(can_repeat=False), []
    items = iter(dataset)
    for number in range(_NUM_SAMPLES):
        with timing.reading():
            item = reading(lambda: next(items, _END), "fingerprint", number)
        if item is _END:
            break
        found.append(item)
    if not found:
        raise ValueError(f"{name} is an empty dataset ({type(dataset).__name__})")
    return digest(type(dataset).__qualname__, *(batch_digest(item) for item in found))
