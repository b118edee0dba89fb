"""Windows cut from one long sequence of tokens: at random for training, evenly spaced for validation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import Batch, to_device
from ampsweep.data.seeding import generator

_AT_ONCE: Final = 2**12
"""Training crops that are drawn together, in the order in which they come: the same in batches of any size."""


class TokenSequence(Protocol):
    """A one-dimensional integer array, or a file that can be read like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, positions: NDArray[np.int64], /) -> NDArray[Any]:
        """The tokens at these positions, in an array of their shape."""


class Crops(TypedDict):
    """The settings of crops, of any text or tokens."""

    seq_len: int
    num_val_batches: int
    batch_size: int
    seed: int
    device: torch.device


class TokenCrops:
    """Batches of token ids (B, seq_len) and the ids that follow them, int64.

    Training crops start anywhere, so there are no epochs. Validation is ``num_val_batches`` batches of crops spread
    evenly over the held-out tokens, fewer where these do not have as many different crops.
    """

    num_train_batches: int | None = None

    def __init__(
        self,
        train: TokenSequence,
        val: TokenSequence,
        *,
        source: str,
        seq_len: int,
        num_val_batches: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        """Take the two sequences; ``source`` names them in error messages.

        Raises:
            ValueError: a size is below 1, or a sequence is too short for a training batch or a validation crop.
        """
        require_positive(seq_len=seq_len, num_val_batches=num_val_batches, batch_size=batch_size)
        for part, tokens, needed in (("training", train, batch_size * seq_len + 1), ("validation", val, seq_len + 1)):
            if len(tokens) < needed:
                raise ValueError(
                    f"{source} has {len(tokens)} tokens for {part}, but batches of {batch_size} with seq_len {seq_len} "
                    f"need at least {needed}"
                )
        self.batch_size = batch_size
        self.tokens_per_batch = batch_size * seq_len
        self._train, self._val = train, val
        self._seed, self._device = seed, device
        self._window = np.arange(seq_len + 1)
        num_crops = min(num_val_batches * batch_size, len(val) - seq_len)
        self._val_starts = np.arange(num_crops) * (len(val) - seq_len) // num_crops
        self.num_val_batches = -(-num_crops // batch_size)
        self._part: tuple[int, NDArray[np.int64]] = -1, np.empty(0, dtype=np.int64)
        """The training crops that were drawn last, and their number among all parts."""

    def train_batch(self, index: int) -> Batch:
        """Crops at random starts, each drawn from (seed, its position among all crops)."""
        starts, first = [], index * self.batch_size
        while (missing := (index + 1) * self.batch_size - first) > 0:
            part, within = divmod(first, _AT_ONCE)
            starts.append(self._starts(part)[within : within + missing])
            first += len(starts[-1])
        return self._cut(self._train, starts[0] if len(starts) == 1 else np.concatenate(starts))

    def val_batch(self, index: int) -> Batch:
        """The evenly spaced crops of batch ``index``; the last may be smaller."""
        return self._cut(self._val, self._val_starts[index * self.batch_size : (index + 1) * self.batch_size])

    def val_batches(self) -> Iterator[Batch]:
        return map(self.val_batch, range(self.num_val_batches))

    def _starts(self, part: int) -> NDArray[np.int64]:
        if self._part[0] != part:  # kept only to save time: the starts are a function of (seed, part)
            num_starts = len(self._train) - len(self._window) + 1
            starts = torch.randint(num_starts, (_AT_ONCE,), generator=generator("crops", self._seed, part))
            self._part = part, starts.numpy()
        return self._part[1]

    def _cut(self, tokens: TokenSequence, starts: NDArray[np.int64]) -> Batch:
        crops = torch.from_numpy(tokens[starts[:, None] + self._window].astype(np.int64))
        inputs, targets = crops[:, :-1].contiguous(), crops[:, 1:].contiguous()
        return to_device(inputs, self._device), to_device(targets, self._device)


def readable_file(path: str) -> Path:
    """The path of a file with content; raise a ``ValueError`` for one that is missing, unreadable or empty."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise ValueError(f"data file {path} cannot be read: {error.strerror}") from error
    if empty:
        raise ValueError(f"data file {path} is empty")
    return file
