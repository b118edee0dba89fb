"""Batches of a stream by index: forwards as they come, anywhere else from the beginning or from a state."""

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from ampsweep.data.fingerprint import batch_probe
from ampsweep.data.item_batches import Collate
from ampsweep.data.stream_batches import StreamBatch, StreamBatches, StreamPlace
from ampsweep.data.workers import Workers
from ampsweep.tracing.host_memory import is_measuring


@dataclass(frozen=True)
class _Passed:
    """A batch that was handed over: the state before it, and what tells it apart."""

    state: dict[str, Any]
    probe: str


class StreamReader:
    """The batches of a stream by index.

    Several workers have streams of their own, of which batches are taken in turn: their number is part of what the
    batches are. One worker reads what this process would.

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
        num_workers: int,
        prefetch_factor: int | None,
        pins: bool,
    ) -> None:
        self._parts: dict[str, Any] = {"batch_size": batch_size, "collate": collate, "seed": seed}
        self._dataset, self._num_workers = dataset, num_workers
        self._ahead: dict[str, Any] = {"prefetch_factor": prefetch_factor, "pins": pins}
        self._num_streams = max(1, num_workers)
        self._source: Iterator[StreamBatch] | None = None
        self._workers: Workers | None = None
        self._next = 0
        self._passed: deque[tuple[int, _Passed]] = deque(maxlen=2 * self._num_streams + 1)

    def __call__(self, index: int) -> Any:
        """Read batch `index`."""
        hands_over = self._source is not None and self._num_workers > 0 and not is_measuring()
        if not self._is_open or index < self._next or (hands_over and index > 0):
            self._open(index)
        while self._next < index:
            self._take()
        return self._take()

    def state_dict(self, next_batch: int) -> dict[str, Any]:
        """The state from which `next_batch`, the next one or the one before it, can be read; plain values."""
        streams = self._num_streams
        passed = dict(self._passed)
        first = next_batch // streams * streams - streams
        wanted = [passed.get(index) for index in range(first, next_batch)]
        state: dict[str, Any] = {"next_batch": next_batch, "num_streams": streams}
        states = [one.state for one in wanted[:streams] if one is not None]
        if first < 0 or None in wanted or not _is_plain(states):
            return state
        return state | {"first": first, "states": states, "probes": [one.probe for one in wanted if one is not None]}

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Go to where a state was taken; return sentences for the user on how."""
        next_batch, streams = state["next_batch"], state["num_streams"]
        if streams != self._num_streams:
            differs = "so that its batches are others from now on"
            why = f"was read by {streams} workers and is now by {self._num_streams}, {differs}"
            return self._skip_to(next_batch, why)
        if "states" not in state:
            return self._skip_to(next_batch, "tells no state to go on from")
        if self._leads_on(state):
            return []
        return self._skip_to(next_batch, "goes on with other batches from the state that it told")

    def stop_workers(self) -> None:
        """End the workers, and forget the place in the stream."""
        self._source = None
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.close()

    @property
    def _is_open(self) -> bool:
        return self._source is not None or self._workers is not None

    def _leads_on(self, state: dict[str, Any]) -> bool:
        """Go on from a state, if the batches that it was proved with come again."""
        first = state["first"]
        self._begin(first, tuple(state["states"]))
        try:
            probes = [batch_probe(self._take()) for _ in range(first, state["next_batch"])]
        except Exception:  # noqa: BLE001  a dataset may raise anything from a state that is not all of it
            return False
        expected: list[str] = state["probes"]
        return probes == expected

    def _skip_to(self, index: int, why: str) -> list[str]:
        if index == 0:
            return []
        self._open(index)
        return [f"the stream {why}: its batches before batch {index} are read again and dropped"]

    def _open(self, index: int) -> None:
        """Begin so that batch `index` can be read soon: those before it are dropped where they are read."""
        self._begin(index // self._num_streams * self._num_streams, ())

    def _begin(self, first: int, states: tuple[Any, ...]) -> None:
        self.stop_workers()
        self._passed.clear()
        self._next = first
        place = StreamPlace(first // self._num_streams, states)
        # A check reads the first batch and no other.
        if self._num_workers > 1 or (self._num_workers and first > 0 and not is_measuring()):
            batches = StreamBatches(self._dataset, place=place, **self._parts)
            self._workers = Workers(batches, None, num_workers=self._num_workers, **self._ahead)
            return
        # A state that turns out not to be all of it would stay in the dataset, as in the copy that a worker has.
        dataset = copy.deepcopy(self._dataset) if states else self._dataset
        self._source = iter(StreamBatches(dataset, place=place, **self._parts))

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
