"""Any of torch's iterable datasets as data of the suite."""

import copy
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import WHOLE, Share, batch_to_device
from ampsweep.data.copied_ahead import CopiedAhead
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.generators import OwnGenerators, seeded
from ampsweep.data.item_batches import Collate
from ampsweep.data.seeding import seed_of
from ampsweep.data.stream_reader import StreamReader
from ampsweep.data.worker_processes import why_not_sent
from ampsweep.data.workers import ReadTiming, WorkerSettings

_NUM_SAMPLES: Final = 8
_END: Final = object()


class StreamDataset:
    """A pair of the user's own ``torch.utils.data.IterableDataset``; ``collate`` makes batches of their items.

    The stream is endless: where it ends it begins again, with ``set_epoch`` if the dataset has that, and within a batch
    if need be. ``train_batch`` goes forwards; any other index begins from the start. While items are read, generators
    are the stream's own, seeded with each pass. A worker reads the same batches as this process; several, whose dataset
    tells by ``get_worker_info`` which items are theirs, take turns, and their number and the size of a batch are part
    of what a batch is. A rank reads all items, and drops those of the others, or those of some of the workers, which
    the ranks share among them. The fingerprint covers class names and the first eight items of each set.
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
        self._timing = ReadTiming()
        self.fingerprint = digest(_fingerprint("train", train, self._timing), _fingerprint("val", val, ReadTiming()))
        reason = why_not_sent(train, collate)
        if num_workers and reason is not None:
            raise ValueError(f"num_workers={num_workers}: {reason}")
        self._can_choose = num_workers is None and reason is None
        self.batch_size = batch_size
        self._train, self._val, self._num_val_batches = train, val, num_val_batches
        self._collate, self._seed, self._device = collate, seed, device
        self._settings = settings
        self._begin(WHOLE)

    def for_rank(self, share: Share) -> "StreamDataset":
        other = copy.copy(self)
        other._begin(share)
        return other

    def train_batch(self, index: int) -> Any:
        batch = self._batches(index)
        self._delivered = index
        return batch

    def val_batches(self) -> Iterator[Any]:
        """The batches of one pass; the last may be smaller."""
        for batch, _ in self.val_rounds():
            yield batch

    def val_rounds(self) -> Iterator[tuple[Any, bool]]:
        for (index, items), counts in self._share.dealt(enumerate(self._val_items())):
            yield batch_to_device(seeded(partial(self._collate, items), "val", index), self._device), counts

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream after the batch that was delivered last."""
        return self._reader.state_dict(self._delivered + 1)

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Go on after that batch; returns sentences for the user on how."""
        self._batches.close()
        self._delivered = self._reader.next_batch(state) - 1
        return self._reader.load_state_dict(state)

    def stop_workers(self) -> None:
        self._batches.close()
        self._reader.stop_workers()

    def _val_items(self) -> Iterator[list[Any]]:
        generators = OwnGenerators()
        with generators:
            generators.begin(seed_of("val", 0))
            source = iter(self._val)
        for _ in itertools.count() if self._num_val_batches is None else range(self._num_val_batches):
            with generators:
                items = list(itertools.islice(source, self.batch_size))
            if not items:
                return
            yield items

    def _begin(self, share: Share) -> None:
        """Be where no training batch of a share has been read."""
        num_workers = self._settings.num_workers or 0
        if self._can_choose:
            num_workers = min(1, self._timing.num_workers(self._device, self.batch_size * share.world_size))
        self.num_workers = 0 if self._device.type == "meta" else num_workers  # without values it is a prediction's
        self._share, self._delivered = share, -1
        self._reader = StreamReader(
            self._train,
            batch_size=self.batch_size,
            collate=self._collate,
            seed=self._seed,
            share=share,
            num_workers=self.num_workers,
            prefetch_factor=self._settings.prefetch_factor,
            pins=self._device.type == "cuda",
        )
        self._batches: CopiedAhead = CopiedAhead(self._reader, self.batch_size, self._device)


def _fingerprint(name: str, dataset: IterableDataset[Any], timing: ReadTiming) -> str:
    found, items = [], iter(dataset)
    for number in range(_NUM_SAMPLES):
        with timing.reading():
            item = seeded(lambda: next(items, _END), "fingerprint", number)
        if item is _END:
            break
        found.append(item)
    if not found:
        raise ValueError(f"{name} is an empty dataset ({type(dataset).__name__})")
    return digest(type(dataset).__qualname__, *(batch_digest(item) for item in found))
