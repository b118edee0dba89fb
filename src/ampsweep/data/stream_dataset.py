"""Any of torch's iterable datasets as data of the suite."""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch.utils.data import IterableDataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import WHOLE, Collate, Share, batch_to_device
from ampsweep.data.batch_reader import BatchReader, CopiedAhead, ReadDataset, WorkerSettings
from ampsweep.data.fingerprint import batch_digest, batch_probe, digest
from ampsweep.data.generators import OwnGenerators, seed_all, seeded
from ampsweep.data.seeding import seed_of
from ampsweep.data.stream_batches import StreamBatches, StreamPlace
from ampsweep.data.workers import is_plain
from ampsweep.text import plural

_NUM_SAMPLES: Final = 8
_END: Final = object()


class StreamDataset(ReadDataset):
    """A pair of the user's own ``torch.utils.data.IterableDataset``; ``collate`` makes batches of their items.

    The stream is endless: where it ends it begins again, with ``set_epoch`` if the dataset has that, and within a batch
    if need be. ``train_batch`` goes forwards; any other index begins from the start. One worker reads the same batches
    as this process; several take turns, and each dataset finds its items by ``get_worker_info``. A rank reads all items
    and drops those of the others, unless the ranks share several workers. The fingerprint covers class names and the
    first eight items of each set.
    """

    num_train_batches: int | None = None

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

        ``num_val_batches``: None is all of the dataset. ``num_workers``: None chooses 0 or 1 by the time of reading.

        Raises:
            ValueError: a dataset is not iterable or empty, or the settings of the workers are wrong.
        """
        require_positive(batch_size=batch_size)
        self._settings = WorkerSettings(num_workers, prefetch_factor)
        for name, dataset in (("train", train), ("val", val)):
            if not isinstance(dataset, IterableDataset):
                raise ValueError(f"{name} must be a torch IterableDataset, got {type(dataset).__name__}")
        self.fingerprint = digest(_fingerprint("train", train), _fingerprint("val", val))
        self._settings.require_sendable(train, collate)
        self.batch_size = batch_size
        self._train, self._val, self._num_val_batches = train, val, num_val_batches
        self._collate, self._seed, self._device = collate, seed, device
        self._begin(WHOLE)

    @property
    def num_workers(self) -> int | None:
        """Number of workers of all ranks; None until it is chosen."""
        return self._settings.num_workers or super().num_workers

    def train_batch(self, index: int) -> Any:
        batch = self._batches(index)
        self._next = index + 1
        return batch

    def val_rounds(self) -> Iterator[tuple[Any, bool]]:
        for (index, items), counts in self._share.dealt(enumerate(self._val_items())):
            yield batch_to_device(seeded(partial(self._collate, items), "val", index), self._device), counts

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream after the batch that was delivered last, as plain values and tensors.

        A dataset's state may be incomplete, as where a shuffle keeps items back. So each stream's is the one before its
        last batch, which is read again and compared.
        """
        latest: dict[int, StreamPlace | None] = {**self._source.places}
        latest |= {stream: place for index, stream, place in self._passed if index < self._next}
        places = {stream: place for stream, place in latest.items() if place is not None and is_plain(place.state)}
        return {
            "position": self._position(self._next),
            "batch_size": self.batch_size,
            "num_streams": self._source.num_streams,
            "places": [[stream, *place] for stream, place in places.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Go on where a state was taken, by this rank or another one; returns sentences for the user on how."""
        self.stop_workers()
        self._begin(self._share)
        self._next = int(state["position"] // self._position(1))
        places = {stream: StreamPlace(*place) for stream, *place in state["places"]}
        why = self._why_read_again(state, places)
        if why is None:
            self._source.places = places
            return []
        self._source.close()
        if self._next == 0:
            return []
        return [f"the stream {why}: its batches before batch {self._next} are read again and dropped"]

    def _why_read_again(self, state: dict[str, Any], places: dict[int, StreamPlace]) -> str | None:
        """Name what keeps the stream from going on from the places of a state; None: nothing."""
        source = self._source
        before, now = (state["num_streams"], state["batch_size"]), (source.num_streams, self.batch_size)
        if before != now and max(before[0], now[0]) > 1:
            how = [f"{plural(workers, 'worker')} in batches of {size} items" for workers, size in (before, now)]
            return f"was read by {how[0]} and is now by {how[1]}, so that its batches are others from now on"
        if state["position"] % self._position(1):
            return "was left within a batch of this run"
        if not places:
            return "tells no state to go on from"
        own = {source.turn(index)[0] for index in range(self._next, self._next + source.num_own)}
        if not own <= places.keys():
            return "has workers of which the checkpoint has no state"
        if not all(source.leads_on(stream, places[stream], state["batch_size"]) for stream in sorted(own)):
            return "goes on with other batches from the state that it told"
        return None

    def _position(self, index: int) -> int:
        """Number of items of all ranks before batch `index` of each."""
        return index * self._share.world_size * self.batch_size

    def _read(self, index: int) -> Any:
        batch, state = self._reader(index)
        if self._passed and self._passed[-1][0] >= index:
            self._passed.clear()
        stream, number = self._source.turn(index)
        place = None if state is None else StreamPlace(number * self.batch_size, state, batch_probe(batch))
        self._passed.append((index, stream, place))
        return batch

    def _val_items(self) -> Iterator[list[Any]]:
        generators = OwnGenerators()
        with generators:
            seed_all(seed_of("val", 0))
            source = iter(self._val)
        for _ in itertools.count() if self._num_val_batches is None else range(self._num_val_batches):
            with generators:
                items = list(itertools.islice(source, self.batch_size))
            if not items:
                return
            yield items

    def _begin(self, share: Share) -> None:
        settings = self._settings
        self._share, self._next = share, 0
        self._source = StreamBatches(
            self._train,
            batch_size=self.batch_size,
            collate=self._collate,
            seed=self._seed,
            num_streams=max(1, settings.num_workers or 0),
            share=share,
        )
        num_own = self._source.num_own
        self._passed: deque[tuple[int, int, StreamPlace | None]] = deque(maxlen=num_own + 1)
        """Index, stream and place of the last batches, one of which may be ahead of what was delivered."""
        own = replace(settings, num_workers=num_own) if settings.num_workers else settings
        self._reader = BatchReader(self._source, own, self._device, most=1)
        self._batches = CopiedAhead(self._read, self.batch_size, self._device)


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
