"""The items of a torch iterable dataset, pass after pass without an end."""

from collections.abc import Generator
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from ampsweep.data.base import Collate
from ampsweep.data.generators import OwnGenerators
from ampsweep.data.seeding import seed_of


class StreamItems:
    """The items of a stream: where a pass ends the next begins, after ``set_epoch`` if the dataset has that.

    The generators are seeded anew with each pass and are then the stream's own, so that items are the same in batches
    of any size.

    Args:
        key: seeds the generators together with the number of passes before.
        least: the fewest items of a pass; `who` says where it is read.
        num_before: items before the place that `state` describes; None: the beginning.
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
        self._begin = state or _beginning(0)
        """The state from which the current pass began, or the next one will."""
        self._num_read = 0
        """Number of items read in this pass."""
        self._items = self._endless()

    def read(
        self, num_before: int, number: int, collate: Collate, *key: str | int
    ) -> tuple[Any, dict[str, Any] | None]:
        """Make a batch of the items after the first `num_before`, beside the state before them.

        `key` seeds what `collate` draws.

        Raises:
            ValueError: a pass has too few items.
        """
        with self._generators:
            for _ in islice(self._items, num_before - self.num_before):
                pass
            state, items = self._state(), [*islice(self._items, number)]
            self._generators.keep()
            self._generators.seed(seed_of(*key))
            return collate(items), state

    def close(self) -> None:
        """Let go of what the dataset has opened."""
        self._items.close()

    def _endless(self) -> Generator[Any]:
        while True:
            epoch = self._begin["epoch"]
            self._generators.seed(seed_of(*self._key, "pass", epoch))
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            is_within = self._begin["dataset"] is not None
            if is_within:
                self._dataset.load_state_dict(self._begin["dataset"])
            items = iter(self._dataset)
            if is_within:
                self._generators.load_states(self._begin["generators"])
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
        states = self._generators.states()
        return {"epoch": self._begin["epoch"], "dataset": self._dataset.state_dict(), "generators": states}


def _beginning(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "dataset": None, "generators": None}


def _part_epochs(dataset: Any) -> None:
    """Give a dataset, and one that it wraps, an epoch of its own.

    Hugging Face's keep theirs in shared memory, where each of our workers, which count the passes of their own streams,
    would write over the others' epoch.
    """
    for name, value in [*getattr(dataset, "__dict__", {}).items()]:
        if isinstance(value, Tensor):
            if name == "_epoch" and value.is_shared():  # type: ignore[no-untyped-call]
                setattr(dataset, name, value.clone())
        elif hasattr(value, "set_epoch"):
            _part_epochs(value)
