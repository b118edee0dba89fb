"""Any of torch's iterable datasets as training data."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from torch.utils.data import IterableDataset

from ampsweep.data.base import Share, batch_to_device
from ampsweep.data.batch_reader import ReadDataset
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.generators import OwnGenerators, seed_all, seeded
from ampsweep.data.seeding import seed_of
from ampsweep.data.stream_batches import StreamBatches

_NUM_SAMPLES: Final = 8
_END: Final = object()


class StreamDataset(ReadDataset):
    """A pair of the user's own ``torch.utils.data.IterableDataset``.

    The stream restarts where it ends, with ``set_epoch`` if the dataset has that, and within a batch if need be.
    ``train_batch`` reads forwards; any other index, as after a resume, is read from the start. One worker reads the
    same batches as this process; several take turns, and each dataset finds its items by ``get_worker_info``. A rank
    reads all items and drops those of the others. The fingerprint covers class names and the first eight items of each
    set.
    """

    num_train_batches: int | None = None

    def __init__(self, *, num_val_batches: int | None = None, **settings: Any) -> None:
        """``num_val_batches``: None is all of the dataset. `settings` are those of `ReadDataset`."""
        self._num_val_batches = num_val_batches
        super().__init__(**settings)

    def val_rounds(self, *name: str) -> Iterator[tuple[Any, bool]]:
        for (index, items), counts in self._share.dealt(enumerate(self._val_items(*name))):
            yield batch_to_device(seeded(partial(self._collate, items), "val", *name, index), self._device), counts

    def _val_items(self, *name: str) -> Iterator[list[Any]]:
        generators = OwnGenerators()
        with generators:
            seed_all(seed_of("val", *name, 0))
            source = iter(self._val[self._val_key(*name)])
        for _ in itertools.count() if self._num_val_batches is None else range(self._num_val_batches):
            with generators:
                items = list(itertools.islice(source, self.batch_size))
            if not items:
                return
            yield items

    def _batches_of(self, share: Share) -> StreamBatches:
        return StreamBatches(
            dataset=self._train,
            batch_size=self.batch_size,
            collate=self._collate,
            seed=self._seed,
            num_streams=max(1, self._num_workers),
            share=share,
        )

    def _digest(self, name: str, dataset: Any) -> str:
        if not isinstance(dataset, IterableDataset):
            raise ValueError(f"{name} must be a torch IterableDataset, got {type(dataset).__name__}")
        found, items = [], iter(dataset)
        for number in range(_NUM_SAMPLES):
            item = seeded(lambda: next(items, _END), "fingerprint", number)
            if item is _END:
                break
            found.append(item)
        if not found:
            raise ValueError(f"{name} is an empty dataset ({type(dataset).__name__})")
        return digest(type(dataset).__qualname__, *map(batch_digest, found))
