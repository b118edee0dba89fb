"""Any of torch's iterable datasets as training data."""

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import WHOLE, Collate, Share, batch_to_device, named_sets
from ampsweep.data.batch_reader import BatchReader, CopiedAhead, ReadDataset, WorkerSettings
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.generators import OwnGenerators, seed_all, seeded
from ampsweep.data.seeding import seed_of
from ampsweep.data.stream_batches import StreamBatches
from ampsweep.data.workers import require_sendable

_NUM_SAMPLES: Final = 8
_END: Final = object()


class StreamDataset(ReadDataset):
    """A pair of the user's own ``torch.utils.data.IterableDataset``; ``collate`` makes batches of their items.

    ``val`` may be several datasets by name.

    The stream restarts where it ends, with ``set_epoch`` if the dataset has that, and within a batch if need be.
    ``train_batch`` reads forwards; any other index, as after a resume, is read from the start. One worker reads the
    same batches as this process; several take turns, and each dataset finds its items by ``get_worker_info``. A rank
    reads all items and drops those of the others. The fingerprint covers class names and the first eight items of each
    set.
    """

    num_train_batches: int | None = None

    def __init__(
        self,
        *,
        train: IterableDataset[Any],
        val: IterableDataset[Any] | Mapping[str, IterableDataset[Any]],
        batch_size: int,
        seed: int,
        device: torch.device,
        num_val_batches: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        collate: Collate = default_collate,
    ) -> None:
        """``num_val_batches``: None is all of the dataset. ``num_workers`` is that of each rank.

        Raises a ``ValueError`` for a dataset that is not iterable or empty, and for wrong settings of the workers.
        """
        require_positive(batch_size=batch_size)
        self._settings = WorkerSettings(num_workers, prefetch_factor)
        self._val = named_sets(val)
        self.val_names = tuple(name for _, *names in self._val for name in names)
        datasets = {".".join(key): dataset for key, dataset in {("train",): train, **self._val}.items()}
        for name, dataset in datasets.items():
            if not isinstance(dataset, IterableDataset):
                raise ValueError(f"{name} must be a torch IterableDataset, got {type(dataset).__name__}")
        self.fingerprint = digest(*self.val_names, *(_fingerprint(name, dataset) for name, dataset in datasets.items()))
        require_sendable(num_workers, train, collate)
        self.batch_size = batch_size
        self._train, self._num_val_batches = train, num_val_batches
        self._collate, self._seed, self._device = collate, seed, device
        self._begin(WHOLE)

    def val_rounds(self, *name: str) -> Iterator[tuple[Any, bool]]:
        for (index, items), counts in self._share.dealt(enumerate(self._val_items(*name))):
            yield batch_to_device(seeded(partial(self._collate, items), "val", *name, index), self._device), counts

    def _val_items(self, *name: str) -> Iterator[list[Any]]:
        generators = OwnGenerators()
        with generators:
            seed_all(seed_of("val", *name, 0))
            source = iter(self._val[("val", *name) if name else next(iter(self._val))])
        for _ in itertools.count() if self._num_val_batches is None else range(self._num_val_batches):
            with generators:
                items = list(itertools.islice(source, self.batch_size))
            if not items:
                return
            yield items

    def _begin(self, share: Share) -> None:
        self._share = share
        source = StreamBatches(
            self._train,
            batch_size=self.batch_size,
            collate=self._collate,
            seed=self._seed,
            num_streams=max(1, self._settings.num_workers),
            share=share,
        )
        self._reader = BatchReader(source, self._settings, self._device)
        self._batches = CopiedAhead(self._reader, self.batch_size, self._device)


def _fingerprint(name: str, dataset: IterableDataset[Any]) -> str:
    found, items = [], iter(dataset)
    for number in range(_NUM_SAMPLES):
        item = seeded(lambda: next(items, _END), "fingerprint", number)
        if item is _END:
            break
        found.append(item)
    if not found:
        raise ValueError(f"{name} is an empty dataset ({type(dataset).__name__})")
    return digest(type(dataset).__qualname__, *(batch_digest(item) for item in found))
