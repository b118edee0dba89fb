"""Text that comes as a stream, in windows that a buffer shuffles."""

import random
from pydoc_data.topics import topics

import torch
from torch.utils.data import IterableDataset


class Windows(IterableDataset):
    """Windows of the Python reference's chapters: bytes (seq_len,) and those that follow each, int64."""

    def __init__(self, first, last, seq_len, buffer):
        self.chapters, self.seq_len, self.buffer = sorted(topics)[first:last], seq_len, buffer

    def __iter__(self):
        waiting = []
        for window in self.windows():
            waiting.append(window)
            if len(waiting) > self.buffer:
                yield waiting.pop(random.randrange(len(waiting)))
        yield from waiting

    def windows(self):
        for chapter in self.chapters:
            ids = torch.tensor([*topics[chapter].encode()])
            for first in range(0, len(ids) - self.seq_len, self.seq_len):
                window = ids[first : first + self.seq_len + 1]
                yield window[:-1], window[1:]
