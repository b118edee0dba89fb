"""Batches of a stream by index: forwards as they come, anywhere else from the beginning or from a known place.

torchdata's `StatefulDataLoader` (0.11) goes on from whatever a dataset's `state_dict` tells. After a shuffle of Hugging
Face's, whose state leaves out its buffer, those are other batches: here a place is proved before it is used.
"""

import copy
import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from ampsweep.data.base import Collate, Share
from ampsweep.data.fingerprint import batch_probe
from ampsweep.data.generators import OwnGenerators, restore_all, seed_all, states_of_all
from ampsweep.data.seeding import seed_of


class StreamItems:
    """The items of a stream: where a pass ends the next begins, after ``set_epoch`` if the dataset has that.

    The generators are the stream's own, seeded with each pass by `key` and the number of passes before, so that items
    are the same in batches of any size. A pass has `least` items or more; `who` says where it is read. `state` is that
    after `num_before` items.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        key: tuple[str | int, ...],
        least: int,
        who: str,
        num_before: int = 0,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._dataset: Any = dataset
        _part_epochs(dataset)
        self._key, self._least, self._who = key, least, who
        self.num_before = num_before
        """Number of items read in all passes."""
        self._generators = OwnGenerators()
        self._begin = state or _beginning(0)
        """The state from which the current pass began, or the next one will."""
        self._num_read = 0
        """Number of items read in this pass."""
        self._items = self._endless()

    def read(
        self, num_before: int, number: int, collate: Collate, *key: str | int
    ) -> tuple[Any, dict[str, Any] | None]:
        """Make a batch of the items after the first `num_before`, beside the state before them.

        `key` seeds what `collate` draws. A pass that has too few items raises a ``ValueError``.
        """
        with self._generators:
            for _ in islice(self._items, num_before - self.num_before):
                pass
            state, items = self._state(), [*islice(self._items, number)]
            self._generators.keep()
            seed_all(seed_of(*key))
            return collate(items), state

    def close(self) -> None:
        """Let go of what the dataset has opened."""
        self._items.close()

    def _endless(self) -> Generator[Any]:
        while True:
            epoch = self._begin["epoch"]
            seed_all(seed_of(*self._key, "pass", epoch))
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            is_within = self._begin["dataset"] is not None
            if is_within:
                self._dataset.load_state_dict(self._begin["dataset"])
            items = iter(self._dataset)
            if is_within:
                restore_all(self._begin["generators"])
            for item in items:
                self.num_before += 1
                self._num_read += 1
                yield item
            if not is_within and self._num_read < self._least:
                raise ValueError(f"a pass of the stream has no full batch of {self._least} items{self._who}")
            self._begin, self._num_read = _beginning(epoch + 1), 0

    def _state(self) -> dict[str, Any] | None:
        """The place in the stream; None unless the dataset tells it, as torchdata's and Hugging Face's do."""
        if not (hasattr(self._dataset, "state_dict") and hasattr(self._dataset, "load_state_dict")):
            return None
        if self._num_read == 0:  # before its first item a dataset need not have any state
            return self._begin
        states = states_of_all()
        return {"epoch": self._begin["epoch"], "dataset": self._dataset.state_dict(), "generators": states}


def _beginning(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "dataset": None, "generators": None}


def _part_epochs(dataset: Any) -> None:
    """Give a dataset, and one that it wraps, an epoch of its own.

    Hugging Face's keep theirs in shared memory, where our workers would write over each other's.
    """
    for name, value in [*getattr(dataset, "__dict__", {}).items()]:
        if isinstance(value, Tensor):
            if name == "_epoch" and value.is_shared():  # type: ignore[no-untyped-call]
                setattr(dataset, name, value.clone())
        elif hasattr(value, "set_epoch"):
            _part_epochs(value)


class StreamPlace(NamedTuple):
    """A place in a stream after `num_before` items, its state, and a digest of the batch that was read from there."""

    num_before: int
    state: dict[str, Any]
    probe: str


class StreamBatches:
    """The micro-batches of a share, by index, in this process or in a worker.

    Batches are taken in turn from the streams of several workers. A share has batches of some streams, whose other
    items are read, too. What `collate` draws depends on (seed, stream, batches before).
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
        self.num_streams, self._share = num_streams, share
        self.num_own = num_streams // math.gcd(num_streams, share.world_size)
        """Number of streams of which the share has batches, in turns."""
        self.places: dict[int, StreamPlace] = {}
        """Places from which streams are known to go on as they did."""
        self._open: dict[int, StreamItems] = {}

    def turn(self, index: int) -> tuple[int, int]:
        """The stream of the share's micro-batch `index`, and its number among the batches of that stream."""
        number, stream = divmod(self._share.index(index), self.num_streams)
        return stream, number

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any] | None]:
        """Read a batch, beside the state of its stream before it, or None if the dataset has none."""
        stream, number = self.turn(index)
        num_before, items = number * self._batch_size, self._open.pop(stream, None)
        if items is None or items.num_before > num_before:
            place = self.places.get(stream)
            items = self._opened(stream, place if place is not None and place.num_before <= num_before else None)
        found = self._read(items, stream, num_before, self._batch_size)
        self._open[stream] = items  # not after an error: the items that are left of a generator are none
        return found

    def close(self) -> None:
        for items in self._open.values():
            items.close()
        self._open.clear()

    def leads_on(self, stream: int, place: StreamPlace, batch_size: int) -> bool:
        """Return True if the batch that was read at a place comes again; the stream then goes on after it."""
        items = self._opened(stream, place)
        try:
            batch, _ = self._read(items, stream, place.num_before, batch_size)
        except Exception:  # noqa: BLE001  a dataset may raise anything from a state that is not all of it
            return False
        if batch_probe(batch) != place.probe:
            return False
        self._open[stream] = items
        return True

    def _opened(self, stream: int, place: StreamPlace | None) -> StreamItems:
        # A state that turns out not to be all of it would stay in the dataset, and each stream needs one of its own.
        is_alone = place is None and not self._open
        return StreamItems(
            self._dataset if is_alone else copy.deepcopy(self._dataset),
            key=("stream", self._seed, stream),
            least=self._batch_size,
            who="" if self.num_streams == 1 else f" for worker {stream + 1} of {self.num_streams}",
            num_before=0 if place is None else place.num_before,
            state=None if place is None else place.state,
        )

    def _read(
        self, items: StreamItems, stream: int, num_before: int, batch_size: int
    ) -> tuple[Any, dict[str, Any] | None]:
        key = "stream", self._seed, stream, num_before // batch_size
        with self._told_stream(stream):
            return items.read(num_before, batch_size, self._collate, *key)

    @contextmanager
    def _told_stream(self, stream: int) -> Iterator[None]:
        """Have `get_worker_info` say which of several streams the dataset is; torch has no public way to."""
        before = torch_worker._worker_info
        if self.num_streams > 1:
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=stream,
                num_workers=self.num_streams,
                seed=seed_of("stream", self._seed, stream),
                dataset=self._dataset,
            )
        try:
            yield
        finally:
            torch_worker._worker_info = before
