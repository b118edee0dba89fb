"""Batches of a stream by index: the next batch continues the stream, any other index reads it from the beginning."""

import copy
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from ampsweep.data.base import Collate, Share
from ampsweep.data.generators import OwnGenerators, seed_all, seeded
from ampsweep.data.seeding import seed_of
from ampsweep.data.training_step import made_for


class StreamItems:
    """The items of a stream in endless passes, with ``set_epoch`` before each if the dataset has that.

    The stream has its own generators, seeded in each pass by `key` and the number of the pass, so that items are the
    same in batches of any size. A pass must have at least `least` items; `who` names the worker in the error.
    """

    def __init__(self, dataset: IterableDataset[Any], *, key: tuple[str | int, ...], least: int, who: str) -> None:
        self._dataset: Any = dataset
        _unshare_epochs(dataset)
        self._key, self._least, self._who = key, least, who
        self.num_before = 0
        self._generators = OwnGenerators()
        self._items = self._endless()

    def read(self, batch: int, size: int, index_of: Callable[[int], int], collate: Collate, *key: str | int) -> Any:
        """Make the stream's batch of this number; `key` seeds the generators of `collate`.

        Items are read for the step of their batch, `index_of` its number, also those of earlier batches, which are
        dropped. Raises a ``ValueError`` if a pass has too few items.
        """
        items: list[Any] = []
        for number in range(self.num_before // size, batch + 1):
            with self._generators, made_for(index_of(number)):
                items = [*islice(self._items, size)]
        with made_for(index_of(batch)):
            return seeded(partial(collate, items), *key)

    def close(self) -> None:
        self._items.close()

    def _endless(self) -> Generator[Any]:
        for epoch in count():
            seed_all(seed_of(*self._key, "pass", epoch))
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            begin = self.num_before
            for item in self._dataset:
                self.num_before += 1
                yield item
            if self.num_before - begin < self._least:
                raise ValueError(f"a pass of the stream has no full batch of {self._least} items{self._who}")


def _unshare_epochs(dataset: Any) -> None:
    """Give a dataset, and any that it wraps, its own epoch.

    Hugging Face's datasets keep it in shared memory, where our workers would overwrite each other's.
    """
    for name, value in [*getattr(dataset, "__dict__", {}).items()]:
        if isinstance(value, Tensor):
            if name == "_epoch" and value.is_shared():  # type: ignore[no-untyped-call]
                setattr(dataset, name, value.clone())
        elif hasattr(value, "set_epoch"):
            _unshare_epochs(value)


class StreamBatches:
    """The micro-batches of a share by index, in this process or in a worker.

    Batches alternate between the streams of several workers. The items of other shares are read, too, and dropped.
    Random numbers in `collate` depend on (seed, stream, number of the batch).
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        batch_size: int,
        collate: Collate,
        seed: int,
        num_streams: int,
        share: Share,
    ) -> None:
        self._dataset, self._batch_size, self._collate, self._seed = dataset, batch_size, collate, seed
        self._num_streams, self._share = num_streams, share
        self._open: dict[int, StreamItems] = {}

    def __getitem__(self, index: int) -> Any:
        number, stream = divmod(self._share.index(index), self._num_streams)
        items, key = self._open.pop(stream, None), ("stream", self._seed, stream, number)
        if items is None or items.num_before > number * self._batch_size:
            items = self._opened(stream)

        def index_of(number: int) -> int:
            return (number * self._num_streams + stream) // self._share.world_size

        with self._worker_info(stream):
            batch = items.read(number, self._batch_size, index_of, self._collate, *key)
        self._open[stream] = items  # not after an error, which has ended the generator
        return batch

    def close(self) -> None:
        for items in self._open.values():
            items.close()
        self._open.clear()

    def _opened(self, stream: int) -> StreamItems:
        return StreamItems(
            copy.deepcopy(self._dataset) if self._open else self._dataset,  # each stream needs its own
            key=("stream", self._seed, stream),
            least=self._batch_size,
            who="" if self._num_streams == 1 else f" for worker {stream + 1} of {self._num_streams}",
        )

    @contextmanager
    def _worker_info(self, stream: int) -> Iterator[None]:
        """Let `get_worker_info` describe one of several streams inside; torch has no public setter."""
        before = torch_worker._worker_info
        if self._num_streams > 1:
            seed = seed_of("stream", self._seed, stream)
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=stream, num_workers=self._num_streams, seed=seed, dataset=self._dataset
            )
        try:
            yield
        finally:
            torch_worker._worker_info = before
