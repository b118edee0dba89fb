"""Batches of a stream by index: the next batch continues the stream, any other index reads it from the beginning."""

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from ampsweep.data.base import Collate, Share
from ampsweep.data.generators import OwnGenerators, seed_all, seeded
from ampsweep.data.seeding import seed_of


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

    def read(self, batch: int, size: int, collate: Collate, *key: str | int) -> Any:
        """Make the stream's batch of this number, dropping earlier ones; `key` seeds the generators of `collate`.

        Raises a ``ValueError`` if a pass has too few items.
        """
        with self._generators:
            begin = batch * size - self.num_before
            items = [*islice(self._items, begin, begin + size)]
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


@dataclass(kw_only=True)
class StreamBatches:
    """The micro-batches of a share by index, in this process or in a worker.

    Batches alternate between the streams of several workers. The items of other shares are read, too, and dropped.
    Random numbers in `collate` depend on (seed, stream, number of the batch).
    """

    dataset: IterableDataset[Any]
    batch_size: int
    collate: Collate
    seed: int
    num_streams: int
    share: Share
    _open: dict[int, StreamItems] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Any:
        number, stream = divmod(self.share.index(index), self.num_streams)
        items, key = self._open.pop(stream, None), ("stream", self.seed, stream, number)
        if items is None or items.num_before > number * self.batch_size:
            items = self._opened(stream)
        with self._worker_info(stream):
            batch = items.read(number, self.batch_size, self.collate, *key)
        self._open[stream] = items  # not after an error, which has ended the generator
        return batch

    def close(self) -> None:
        for items in self._open.values():
            items.close()
        self._open.clear()

    def _opened(self, stream: int) -> StreamItems:
        return StreamItems(
            copy.deepcopy(self.dataset) if self._open else self.dataset,  # each stream needs its own
            key=("stream", self.seed, stream),
            least=self.batch_size,
            who="" if self.num_streams == 1 else f" for worker {stream + 1} of {self.num_streams}",
        )

    @contextmanager
    def _worker_info(self, stream: int) -> Iterator[None]:
        """Let `get_worker_info` describe one of several streams inside; torch has no public setter."""
        before = torch_worker._worker_info
        if self.num_streams > 1:
            seed = seed_of("stream", self.seed, stream)
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=stream, num_workers=self.num_streams, seed=seed, dataset=self.dataset
            )
        try:
            yield
        finally:
            torch_worker._worker_info = before
