"""Handwritten digits: real data, small enough for any machine, with a meaningful accuracy."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ampsweep.data.base import Batch, to_device
from ampsweep.data.fingerprint import tensor_digest
from ampsweep.data.seeding import Shuffle, held_out


class Digits:
    """scikit-learn's 1,797 handwritten digits, resident on the device.

    Inputs are (B, 1, 8, 8) float32 in [0, 1], targets (B,) int64 from 0 to 9. Source: E. Alpaydin and C. Kaynak,
    "Optical Recognition of Handwritten Digits", UCI, 1998 (its test set). The split is the same for every seed.
    """

    tokens_per_batch: int | None = None

    def __init__(self, *, val_fraction: float, batch_size: int, seed: int, device: torch.device) -> None:
        """Raise a ``ValueError`` if scikit-learn is missing, or a setting does not fit the data."""
        pixels, labels = _images_and_labels()
        inputs = torch.from_numpy(pixels).float().div(16).view(-1, 1, 8, 8)
        targets = torch.from_numpy(labels).to(torch.int64)
        train, val = held_out(len(inputs), val_fraction)
        self.batch_size = batch_size
        self.fingerprint = tensor_digest(inputs[train], targets[train], inputs[val], targets[val])
        self._shuffle = Shuffle(len(train), batch_size, seed)
        self.num_train_batches, self.num_val_batches = self._shuffle.num_batches, -(-len(val) // batch_size)
        self._device = device
        self._train = inputs[train].to(device), targets[train].to(device)
        self._val = inputs[val].to(device), targets[val].to(device)

    def train_batch(self, index: int) -> Batch:
        items = to_device(self._shuffle.items(index), self._device)
        inputs, targets = self._train
        return inputs[items], targets[items]

    def val_batch(self, index: int) -> Batch:
        (inputs, targets), items = self._val, slice(index * self.batch_size, (index + 1) * self.batch_size)
        return inputs[items], targets[items]

    def val_batches(self) -> Iterator[Batch]:
        return map(self.val_batch, range(self.num_val_batches))


def _images_and_labels() -> tuple[NDArray[np.float64], NDArray[Any]]:
    """The pixels, (1797, 64) from 0 to 16, and the labels, (1797,), without scikit-learn's slow import."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ValueError("the digits come with scikit-learn, which is not installed")
    rows = np.loadtxt(Path(package.submodule_search_locations[0]) / "datasets/data/digits.csv.gz", delimiter=",")
    return rows[:, :-1], rows[:, -1]
