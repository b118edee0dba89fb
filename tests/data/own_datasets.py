"""Datasets of a user, which workers can import."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def drawn(number):
    """An item with random numbers from every generator that an augmentation may draw from."""
    draws = [torch.rand(()).item(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    return torch.tensor([number, *draws], dtype=torch.float64)


def fail(error):
    raise error


class Augmented(Dataset):
    """Its items draw from torch, `random` and NumPy, but every third item from none."""

    def __init__(self, length=24):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, item):
        return drawn(item) if item % 3 else torch.full((6,), float(item), dtype=torch.float64)


class Read(Augmented):
    """Its items are what a function makes of their numbers."""

    def __init__(self, read, length=24):
        super().__init__(length)
        self.read = read

    def __getitem__(self, item):
        return self.read(item)


class Stream(IterableDataset):
    """Numbers from 0 on, divided among the workers; each pass has others."""

    def __init__(self, length=26):
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (drawn(100 * self.epoch + number) for number in range(worker, self.length, num_workers))


class Shuffled(Stream):
    """A stream shuffled in a buffer."""

    def __iter__(self):
        buffer = []
        for item in super().__iter__():
            buffer.append(item)
            if len(buffer) > 7:
                yield buffer.pop(random.randrange(len(buffer)))
        yield from buffer
