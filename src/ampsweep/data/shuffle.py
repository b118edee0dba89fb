"""The order in which the items of a finite data set are visited."""

import torch
from torch import Tensor

from ampsweep.data.checks import require_batch
from ampsweep.data.randomness import generator


class Shuffle:
    """A new permutation of ``num_items`` in each epoch, cut into whole batches; the rest of an epoch is dropped."""

    def __init__(self, num_items: int, batch_size: int, seed: int) -> None:
        """A batch that is larger than the data is a ``ValueError``."""
        require_batch(batch_size, num_items)
        self.num_batches = num_items // batch_size
        self._num_items = num_items
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def items(self, index: int) -> Tensor:
        """The items, int64 (batch_size,) on the CPU, of micro-batch ``index`` since the start of training."""
        epoch, position = divmod(index, self.num_batches)
        if epoch != self._epoch:  # kept only to save time: the order is a function of (seed, epoch)
            self._order = torch.randperm(self._num_items, generator=generator("epoch", self._seed, epoch))
            self._epoch = epoch
        return self._order[position * self._batch_size :][: self._batch_size]
