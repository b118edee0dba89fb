"""The items of a torch iterable dataset, pass after pass without an end."""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from ampsweep.data.generators import OwnGenerators
from ampsweep.data.item_batches import Collate
from ampsweep.data.seeding import seed_of


@dataclass(frozen=True)
class StreamBatch:
    """A batch, and the state of the stream as it was before."""

    batch: Any
    state: dict[str, Any] | None
    """None if the dataset tells none."""


class StreamItems:
    """The items of a stream: where a pass ends the next begins, after ``set_epoch`` if the dataset has that.

    With each pass the generators are seeded anew, and are then the stream's own, so that items are the same in batches
    of any size.

    Args:
        key: seeds them together with the number of passes before.
        least: items that a pass must have; `who` tells where it is read.
        state: where to go on; None: at the beginning.
    """

    def __init__(
        self, dataset: IterableDataset[Any], *, key: tuple[str | int, ...], least: int, who: str, state: Any = None
    ) -> None:
        self._dataset: Any = dataset
        _part_epochs(dataset)
        self._key, self._least, self._who = key, least, who
        self._generators = OwnGenerators()
        self._epoch: int = 0 if state is None else state["epoch"]
        self._state: dict[str, Any] | None = state
        """The state from which the next pass is to begin."""
        self._items: Iterator[Any] | None = None
        self._num_read: int | None = 0
        """Number of items of this pass that were read; None where it was begun from a state."""

    def skip(self, number: int) -> None:
        """Pass by so many items.

        Raises:
            ValueError: a pass has too few items.
        """
        if number > 0:
            with self._generators:
                while number := number - self._passed_by(number):
                    self._end_pass()

    def read(self, number: int, collate: Collate, *key: str | int) -> StreamBatch:
        """Make a batch of the next items; `key` seeds what `collate` draws.

        Raises:
            ValueError: a pass has too few items.
        """
        with self._generators:
            state, items = self._told_state(), self._taken(number)
            while len(items) < number:
                self._end_pass()
                items += self._taken(number - len(items))
            self._generators.keep()
            self._generators.seed(seed_of(*key))
            return StreamBatch(collate(items), state)

    def _taken(self, number: int) -> list[Any]:
        found = list(itertools.islice(self._pass(), number))
        self._count(len(found))
        return found

    def _passed_by(self, number: int) -> int:
        counter = itertools.count()
        deque(zip(itertools.islice(self._pass(), number), counter, strict=False), maxlen=0)
        self._count(found := next(counter))
        return found

    def _count(self, number: int) -> None:
        if self._num_read is not None:
            self._num_read += number

    def _pass(self) -> Iterator[Any]:
        if self._items is None:
            self._items = self._begun()
        return self._items

    def _begun(self) -> Iterator[Any]:
        self._generators.begin(seed_of(*self._key, "pass", self._epoch))
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        state, self._state = self._state, None
        if state is None or state["dataset"] is None:
            self._num_read = 0
            items: Iterator[Any] = iter(self._dataset)
            return items
        self._num_read = None
        self._dataset.load_state_dict(state["dataset"])
        items = iter(self._dataset)
        self._generators.load_state(state["generators"])
        return items

    def _end_pass(self) -> None:
        if self._num_read is not None and self._num_read < self._least:
            raise ValueError(f"a pass of the stream has no full batch of {self._least} items{self._who}")
        self._items, self._epoch = None, self._epoch + 1

    def _told_state(self) -> dict[str, Any] | None:
        if not tells_state(self._dataset):
            return None
        items = self._pass()
        assert items is not None
        if self._num_read == 0:  # before its first item a dataset need not have any
            return {"epoch": self._epoch, "dataset": None, "generators": None}
        return {"epoch": self._epoch, "dataset": self._dataset.state_dict(), "generators": self._generators.state()}


def tells_state(dataset: Any) -> bool:
    """Tell whether a dataset says where it is and can go on from there, as torchdata's and Hugging Face's do."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


def _part_epochs(dataset: Any) -> None:
    """Give a dataset, and one that it wraps, an epoch of its own.

    Hugging Face's keep theirs in shared memory, where persistent workers see what `set_epoch` in the main process
    writes. Each of our workers counts the passes of its own stream, and would write over the others' epoch.
    """
    for name, value in [*getattr(dataset, "__dict__", {}).items()]:
        if isinstance(value, Tensor):
            if name == "_epoch" and value.is_shared():  # type: ignore[no-untyped-call]
                setattr(dataset, name, value.clone())
        elif hasattr(value, "set_epoch"):
            _part_epochs(value)
