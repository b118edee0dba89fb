"""The items of a torch iterable dataset, pass after pass without an end."""

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from ampsweep.data.base import Collate
from ampsweep.data.generators import OwnGenerators
from ampsweep.data.seeding import seed_of


class StreamItems:
    """The items of a stream: where a pass ends the next begins, after ``set_epoch`` if the dataset has that.

    With each pass the generators are seeded anew, and are then the stream's own, so that items are the same in batches
    of any size.

    Args:
        key: seeds them together with the number of passes before.
        least: items that a pass must have; `who` tells where it is read.
        num_before: items before the place where `state` was told; None: the beginning.
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
        """Number of items that were read or passed by, in all passes."""
        self._generators = OwnGenerators()
        self._epoch: int = 0 if state is None else state["epoch"]
        self._state = state
        """The state from which the next pass is to begin."""
        self._items: Iterator[Any] | None = None
        self._began_at: int | None = 0
        """Items before this pass; None where it was begun from a state."""

    def skip_to(self, num_before: int) -> None:
        """Pass by items until so many were read or passed by.

        Raises:
            ValueError: a pass has too few items.
        """
        if self.num_before == num_before:
            return
        with self._generators:
            while True:
                for _ in itertools.islice(self._pass(), num_before - self.num_before):
                    self.num_before += 1
                if self.num_before == num_before:
                    return
                self._end_pass()

    def read(self, number: int, collate: Collate, *key: str | int) -> tuple[Any, dict[str, Any] | None]:
        """Make a batch of the next items, beside the state before them; `key` seeds what `collate` draws.

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
            return collate(items), state

    def _taken(self, number: int) -> list[Any]:
        found = list(itertools.islice(self._pass(), number))
        self.num_before += len(found)
        return found

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
            self._began_at = self.num_before
            items: Iterator[Any] = iter(self._dataset)
            return items
        self._began_at = None
        self._dataset.load_state_dict(state["dataset"])
        items = iter(self._dataset)
        self._generators.load_state(state["generators"])
        return items

    def _end_pass(self) -> None:
        if self._began_at is not None and self.num_before - self._began_at < self._least:
            raise ValueError(f"a pass of the stream has no full batch of {self._least} items{self._who}")
        self._items, self._epoch = None, self._epoch + 1

    def _told_state(self) -> dict[str, Any] | None:
        """The place in the stream as the dataset tells it, if it does, as torchdata's and Hugging Face's do."""
        if not (hasattr(self._dataset, "state_dict") and hasattr(self._dataset, "load_state_dict")):
            return None
        self._pass()
        if self._began_at == self.num_before:  # before its first item a dataset need not have any
            return {"epoch": self._epoch, "dataset": None, "generators": None}
        return {"epoch": self._epoch, "dataset": self._dataset.state_dict(), "generators": self._generators.state()}


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
