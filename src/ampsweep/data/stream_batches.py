"""Batches of a torch iterable dataset, as one process reads them: an endless stream, from a given place on."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from ampsweep.data.item_batches import Collate
from ampsweep.data.share import Share
from ampsweep.data.stream_items import StreamBatch, StreamItems


@dataclass(frozen=True)
class Turns:
    """The turns in which the batches of several streams come: one of each, and again.

    A share of them has batches of some of the streams, which come in turns, too.
    """

    num_streams: int
    share: Share

    @property
    def num_own(self) -> int:
        """Number of streams of which the share has batches."""
        return self.num_streams // math.gcd(self.num_streams, self.share.world_size)

    def of(self, index: int) -> tuple[int, int]:
        """The stream of the share's micro-batch `index`, and its number among the batches of that stream."""
        number, stream = divmod(self.share.index(index), self.num_streams)
        return stream, number


@dataclass(frozen=True)
class StreamPlace:
    """A place in a stream from which it can be read on."""

    num_before: int = 0
    """Items of the stream before the place."""
    state: dict[str, Any] | None = None
    """The state there, as `StreamItems` tells it; None at the beginning."""


@dataclass(frozen=True)
class StreamBatches:
    """The batches of a share, from its micro-batch `first` on, as far as they are of one stream.

    In a worker they are of that worker's own stream: its dataset finds out by `get_worker_info` which part of the items
    it has. What is not the share's is read, too, but no batch is made of it. What items draw depends on (seed, stream,
    items before), what `collate` draws on (seed, stream, batches before).
    """

    dataset: IterableDataset[Any]
    batch_size: int
    collate: Collate
    seed: int
    turns: Turns
    first: int
    places: Mapping[int, StreamPlace] = field(default_factory=dict)
    """Places to begin at, by stream; others are read from their beginning."""

    def __iter__(self) -> Iterator[StreamBatch]:
        """Yield batches.

        Raises:
            ValueError: a pass is shorter than a batch.
        """
        info, turns = get_worker_info(), self.turns
        own = self.first + (0 if info is None else info.id)
        stream, number = turns.of(own)
        _, following = turns.of(own + turns.num_own)
        if info is not None and (info.id, info.num_workers) != (stream, turns.num_streams):
            # Nothing public tells a dataset which stream it is where these are not the workers of one loader.
            # Made anew, as torch's workers make it: its class is a dataclass only since torch 2.12.
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=stream, num_workers=turns.num_streams, seed=info.seed - info.id + stream, dataset=info.dataset
            )
        place = self.places.get(stream, StreamPlace())
        items = StreamItems(
            self.dataset,
            key=("stream", self.seed, stream),
            least=self.batch_size,
            who="" if turns.num_streams == 1 else f" for worker {stream + 1} of {turns.num_streams}",
            state=place.state,
        )
        items.skip(number * self.batch_size - place.num_before)
        while True:
            yield items.read(self.batch_size, self.collate, "stream", self.seed, stream, number)
            items.skip((following - number - 1) * self.batch_size)
            number, following = following, 2 * following - number
