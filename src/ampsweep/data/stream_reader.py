"""Batches of a stream by index: forwards as they come, anywhere else from the beginning or from a state."""

import copy
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from ampsweep.data.fingerprint import batch_probe
from ampsweep.data.item_batches import Collate
from ampsweep.data.share import Share
from ampsweep.data.stream_items import StreamBatch, StreamItems
from ampsweep.data.workers import Workers
from ampsweep.tracing.host_memory import is_measuring


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


@dataclass(frozen=True)
class _Passed:
    """A batch that was handed over: the state before it, and what tells it apart."""

    state: dict[str, Any]
    probe: str


class StreamReader:
    """The batches of a share of a stream by index.

    Several workers have streams of their own, of which batches are taken in turn: their number, over all ranks, is part
    of what the batches are. One worker reads what this process would.

    A state that a dataset tells may not be all of it, as where a shuffle keeps items back. So the state of a checkpoint
    is the one before the last batch of each worker; these are read again, and compared with what they were.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        batch_size: int,
        collate: Collate,
        seed: int,
        share: Share,
        num_workers: int,
        prefetch_factor: int | None,
        pins: bool,
    ) -> None:
        self._dataset, self._num_workers = dataset, num_workers
        self._batch_size, self._turns = batch_size, Turns(max(1, num_workers), share)
        self._parts: dict[str, Any] = {"collate": collate, "seed": seed}
        self._ahead: dict[str, Any] = {"prefetch_factor": prefetch_factor, "pins": pins}
        self._source: Iterator[StreamBatch] | None = None
        self._workers: Workers | None = None
        self._next = 0
        self._passed: deque[tuple[int, _Passed]] = deque(maxlen=self._turns.num_own + 1)

    def __call__(self, index: int) -> Any:
        """Read batch `index`."""
        hands_over = self._source is not None and self._num_workers > 0 and not is_measuring()
        if not self._is_open or index < self._next or (hands_over and index > 0):
            self._begin(index, {})
        while self._next < index:
            self._take()
        return self._take()

    def state_dict(self, next_batch: int) -> dict[str, Any]:
        """The state from which `next_batch`, the next one or the one before it, can be read; plain values."""
        share, passed = self._turns.share, dict(self._passed)
        first = next_batch - self._turns.num_own
        wanted = [found for index in range(first, next_batch) if (found := passed.get(index)) is not None]
        state = {
            "position": self._position(next_batch),
            "batch_size": self._batch_size,
            "num_streams": self._turns.num_streams,
            "rank": share.rank,
            "world_size": share.world_size,
        }
        states = [one.state for one in wanted]
        if len(wanted) < self._turns.num_own or not _is_plain(states):
            return state
        return state | {"first": first, "states": states, "probes": [one.probe for one in wanted]}

    def next_batch(self, state: dict[str, Any]) -> int:
        """The batch of this share in which a state was taken, or before which."""
        return int(state["position"] // self._position(1))

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Go to where a state was taken, by this rank or another one; return sentences for the user on how."""
        next_batch, streams, num_streams = self.next_batch(state), state["num_streams"], self._turns.num_streams
        differs = "so that its batches are others from now on"
        if streams != num_streams:
            return self._skip_to(next_batch, f"was read by {streams} workers and is now by {num_streams}, {differs}")
        if streams > 1 and state["batch_size"] != self._batch_size:
            sizes = f"{state['batch_size']} items and now in such of {self._batch_size}"
            return self._skip_to(next_batch, f"was read by {streams} workers in batches of {sizes}, {differs}")
        if state["position"] % self._position(1):
            return self._skip_to(next_batch, "was left within a batch of this run")
        if "states" not in state:
            return self._skip_to(next_batch, "tells no state to go on from")
        places = self._places_in(state)
        if not {self._turns.of(next_batch + turn)[0] for turn in range(self._turns.num_own)} <= places.keys():
            return self._skip_to(next_batch, "has workers of which the checkpoint has no state")
        told_by = self._as_in(state)
        if not told_by._leads_on(state, places):
            return self._skip_to(next_batch, "goes on with other batches from the state that it told")
        if told_by is not self:
            told_by.stop_workers()
            self._begin(next_batch, places)
        return []

    def stop_workers(self) -> None:
        """End the workers, and forget the place in the stream."""
        self._source = None
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.close()

    @property
    def _is_open(self) -> bool:
        return self._source is not None or self._workers is not None

    def _position(self, index: int) -> int:
        """Number of items of all ranks before batch `index` of each."""
        return index * self._turns.share.world_size * self._batch_size

    def _as_in(self, state: dict[str, Any]) -> "StreamReader":
        """The reader of the batches with which a state was proved: this one, if they are of the same share and size."""
        share = Share(state["rank"], state["world_size"])
        if (share, state["batch_size"]) == (self._turns.share, self._batch_size):
            return self
        return StreamReader(
            self._dataset,
            batch_size=state["batch_size"],
            share=share,
            num_workers=self._num_workers,
            **self._parts,
            **self._ahead,
        )

    def _places_in(self, state: dict[str, Any]) -> dict[int, StreamPlace]:
        """The places of a state, by stream."""
        turns = Turns(state["num_streams"], Share(state["rank"], state["world_size"]))
        found = {}
        for index, of_stream in enumerate(state["states"], state["first"]):
            stream, number = turns.of(index)
            found[stream] = StreamPlace(number * state["batch_size"], of_stream)
        return found

    def _leads_on(self, state: dict[str, Any], places: Mapping[int, StreamPlace]) -> bool:
        """Go on from a state, if the batches that it was proved with come again."""
        self._begin(state["first"], places)
        try:
            probes = [batch_probe(self._take()) for _ in state["probes"]]
        except Exception:  # noqa: BLE001  a dataset may raise anything from a state that is not all of it
            return False
        expected: list[str] = state["probes"]
        return probes == expected

    def _skip_to(self, index: int, why: str) -> list[str]:
        if index == 0:
            return []
        self._begin(index, {})
        return [f"the stream {why}: its batches before batch {index} are read again and dropped"]

    def _begin(self, first: int, places: Mapping[int, StreamPlace]) -> None:
        """Begin so that batch `first` comes next: what is before it is dropped where it is read."""
        self.stop_workers()
        self._passed.clear()
        self._next = first
        parts = {**self._parts, "batch_size": self._batch_size, "turns": self._turns, "first": first, "places": places}
        # A check reads the first batch and no other.
        if self._num_workers > 1 or (self._num_workers and first > 0 and not is_measuring()):
            batches = StreamBatches(self._dataset, **parts)
            self._workers = Workers(batches, None, num_workers=self._turns.num_own, **self._ahead)
            return
        # A state that turns out not to be all of it would stay in the dataset, as in the copy that a worker has.
        self._source = iter(StreamBatches(copy.deepcopy(self._dataset) if places else self._dataset, **parts))

    def _take(self) -> Any:
        try:
            found = self._read_on()
        except BaseException:
            self.stop_workers()
            raise
        if found.state is not None:
            self._passed.append((self._next, _Passed(found.state, batch_probe(found.batch))))
        self._next += 1
        return found.batch

    def _read_on(self) -> StreamBatch:
        if self._source is not None:
            return next(self._source)
        assert self._workers is not None
        found: StreamBatch = self._workers.next()
        return found


def _is_plain(value: Any) -> bool:
    """Tell whether a checkpoint can hold a value, which is read without running any code."""
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, Tensor)
