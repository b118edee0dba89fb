"""Small data sets of each kind, made in a folder of the test's, given `batch_size`, `seed` and `device`."""

from functools import partial

import numpy as np
import torch
from own_datasets import Augmented, Shuffled, Stream
from torch.utils.data import TensorDataset

from ampsweep.data.digits import Digits
from ampsweep.data.image_folder import ImageFolder
from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.stream_dataset import StreamDataset
from ampsweep.data.synthetic import SyntheticImages, SyntheticRegression, SyntheticTokens
from ampsweep.data.tokens import Text, Tokens
from ampsweep.nested_tensors import tensors_in


def synthetic(kind, _, *, num_batches=None, **settings):
    """Of 40 items, in batches of any size."""
    return kind(num_batches=num_batches or 40 // settings["batch_size"], **settings)


def tokens(folder, **common):
    path = folder / "ids.bin"
    np.random.default_rng(0).integers(0, 500, 4000).astype(np.uint16).tofile(path)
    return Tokens(path=str(path), vocab_size=500, seq_len=32, val_fraction=0.1, num_val_batches=3, **common)


def image_folder(folder, **common):
    from PIL import Image

    for number in range(30):
        file = folder / "images" / f"class {number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 12), (number, 7 * number, 100)).save(file)
    sizes = {"image_size": 6, "num_classes": 2, "val_fraction": 0.3}
    return ImageFolder(path=str(folder / "images"), augment=True, **sizes, **common)


def stored_rows(_, **common):
    return MapDataset(train=rows(30).with_transform(noisy), val=rows(21).with_format("torch"), **common)


def streamed_rows(_, **common):
    train = rows(30).to_iterable_dataset(num_shards=3).shuffle(seed=5, buffer_size=7).with_format("torch")
    return StreamDataset(train=train, val=rows(21).to_iterable_dataset().with_format("torch"), **common)


class OwnData:
    """A user's own data: numbers, which begin again after 30."""

    num_train_batches = tokens_per_batch = None
    fingerprint = "own"

    def __init__(self, batch_size, seed, device):
        self.batch_size, self.seed, self.device = batch_size, seed, device

    def train_batch(self, index):
        numbers = torch.arange(index * self.batch_size, (index + 1) * self.batch_size, device=self.device)
        return self.seed + numbers % 30, numbers

    def val_batches(self):
        yield from ((numbers, numbers) for numbers in torch.arange(21, device=self.device).split(self.batch_size))


def rows(length):
    """A data set of Hugging Face's."""
    import datasets

    return datasets.Dataset.from_dict({"x": [[float(i), 2.0] for i in range(length)], "y": [*range(length)]})


def noisy(batch):
    return {"x": [torch.tensor(x) + torch.rand(2) for x in batch["x"]], "y": batch["y"]}


def same(left, right):
    """Return True if two batches, or lists of batches, have equal tensors."""
    left, right = [*tensors_in(left)], [*tensors_in(right)]
    return len(left) == len(right) and all(map(torch.equal, left, right))


NUMBERS = TensorDataset(torch.arange(30.0), torch.arange(30))
SYNTHETIC = {
    "regression": partial(synthetic, SyntheticRegression, in_features=3, out_features=2),
    "synthetic tokens": partial(synthetic, SyntheticTokens, vocab_size=11, seq_len=6),
    "images": partial(synthetic, SyntheticImages, image_size=8, in_channels=1, num_classes=4),
}
LASTING = {
    "digits": lambda _, **common: Digits(val_fraction=0.05, **common),
    "text": lambda _, **common: Text(seq_len=32, val_fraction=0.1, num_val_batches=3, **common),
    "tokens": tokens,
    "map dataset": lambda _, **common: MapDataset(train=NUMBERS, val=NUMBERS, **common),
}
OF_THE_SUITE = SYNTHETIC | LASTING
AUGMENTED = {"augmented": lambda _, **common: MapDataset(train=Augmented(30), val=Augmented(21), **common)}
STREAMS = {
    "stream": lambda _, **common: StreamDataset(train=Stream(), val=Stream(21), **common),
    "shuffled stream": lambda _, **common: StreamDataset(train=Shuffled(), val=Stream(21), **common),
    "streamed rows": streamed_rows,
}
OWN = {"own": lambda _, **common: OwnData(**common)}
EVERY = OF_THE_SUITE | AUGMENTED | {"image folder": image_folder, "stored rows": stored_rows} | STREAMS | OWN
NEEDS = {image_folder: "PIL", stored_rows: "datasets", streamed_rows: "datasets"}
"""Packages that not every environment has."""
