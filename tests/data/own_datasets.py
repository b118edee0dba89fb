"""Datasets of a user, which workers can import."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def drawn(number):
    """An item with random numbers from every generator that an augmentation may draw from."""
    draws = [torch.rand(()).item(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    return torch.tensor([number, *draws], dtype=torch.float64)


class Augmented(Dataset):
    """Its items draw from torch, `random` and NumPy, but every third item from none."""

    def __init__(self, length=24):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, item):
        return drawn(item) if item % 3 else torch.full((6,), float(item), dtype=torch.float64)


class Broken(Augmented):
    """Calls a function before it reads item 5."""

    def __init__(self, fails, length=24):
        super().__init__(length)
        self.fails = fails

    def __getitem__(self, item):
        if item == 5:
            self.fails()
        return super().__getitem__(item)


def fail(error):
    raise error


class Unpicklable(Augmented):
    """Cannot be sent to another process."""

    def __init__(self, length=24):
        super().__init__(length)
        self.read = lambda item: item


class Unsendable(Augmented):
    """Its items cannot be sent to another process."""

    def __getitem__(self, item):
        return {"item": item, "reads": lambda: item}


class Stream(IterableDataset):
    """Numbers from 0 on, divided among the workers; each pass has others."""

    def __init__(self, length=26):
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def numbers(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        return [100 * self.epoch + number for number in range(worker, self.length, num_workers)]

    def __iter__(self):
        yield from map(drawn, self.numbers())


class Shuffled(Stream):
    """A stream shuffled in a buffer."""

    def __iter__(self):
        buffer = []
        for item in super().__iter__():
            if len(buffer) < 7:
                buffer.append(item)
                continue
            place = random.randrange(len(buffer))
            buffer[place], chosen = item, buffer[place]
            yield chosen
        yield from buffer


class Watched(Augmented):
    """Its items are the number of active dispatch modes."""

    def __getitem__(self, item):
        return torch.tensor(torch._C._len_torch_dispatch_stack())
