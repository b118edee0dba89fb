"""Batches of a torch iterable dataset, as one process reads them: an endless stream, from a given place on."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch.utils.data import IterableDataset, get_worker_info

from ampsweep.data.item_batches import Collate
from ampsweep.data.seeded_reading import SeededReading

_END: Final = object()


@dataclass(frozen=True)
class StreamPlace:
    """A place in a process's stream from which it can be read on."""

    num_before: int
    """Batches of this process before the place."""
    states: tuple[Any, ...] = ()
    """The state of each process there, as `StreamBatches` gives it; none: the batches before are read and dropped."""


@dataclass(frozen=True)
class StreamBatch:
    """A batch, and the state of the process that read it as it was before."""

    batch: Any
    state: dict[str, Any] | None
    """None if the dataset tells none."""


class StreamBatches:
    """Full batches of a stream, pass after pass without an end; what is left of a pass is dropped.

    In a worker it is that worker's own stream: its dataset finds out by `get_worker_info` which part of the items it
    has. While a batch is read the generators are seeded from (seed, worker, batches before). If the dataset has
    `set_epoch`, it is called with the number of passes before.
    """

    def __init__(
        self, dataset: IterableDataset[Any], *, batch_size: int, collate: Collate, seed: int, place: StreamPlace
    ) -> None:
        self._dataset, self._batch_size, self._collate, self._seed = dataset, batch_size, collate, seed
        self._place = place

    def __iter__(self) -> Iterator[StreamBatch]:
        """Yield batches.

        Raises:
            ValueError: a pass has no full batch.
        """
        info, place = get_worker_info(), self._place
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        reading, key = SeededReading(can_repeat=False), ("stream", self._seed, worker)
        state = place.states[worker] if place.states else None
        num_read = 0 if state is None else place.num_before
        for epoch in itertools.count(0 if state is None else state["epoch"]):
            items = reading(lambda: self._begun(epoch, state), *key, "pass", epoch)  # noqa: B023  called at once
            has_batch, state = state is not None, None
            is_first = not has_batch
            while True:
                before = self._state(epoch, is_first=is_first)
                wanted = num_read >= place.num_before
                batch = reading(lambda: self._read(items, collates=wanted), *key, num_read)  # noqa: B023  likewise
                if batch is _END:
                    break
                if wanted:
                    yield StreamBatch(batch, before)
                has_batch, is_first, num_read = True, False, num_read + 1
            if not has_batch:
                who = "" if num_workers == 1 else f" for worker {worker + 1} of {num_workers}"
                raise ValueError(f"a pass of the stream has no full batch of {self._batch_size} items{who}")

    def _begun(self, epoch: int, state: dict[str, Any] | None) -> Iterator[Any]:
        dataset: Any = self._dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        if state is not None and state["dataset"] is not None:
            dataset.load_state_dict(state["dataset"])
        return iter(dataset)

    def _state(self, epoch: int, *, is_first: bool) -> dict[str, Any] | None:
        dataset: Any = self._dataset
        if not tells_state(dataset):
            return None
        # Before its first item a dataset need not have any.
        return {"epoch": epoch, "dataset": None if is_first else dataset.state_dict()}

    def _read(self, items: Iterator[Any], *, collates: bool) -> Any:
        batch = list(itertools.islice(items, self._batch_size))
        if len(batch) < self._batch_size:
            return _END
        return self._collate(batch) if collates else None


def tells_state(dataset: Any) -> bool:
    """Tell whether a dataset says where it is and can go on from there, as torchdata's and Hugging Face's do."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
