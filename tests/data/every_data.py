"""One small data set of each kind, made in a folder of the test's, given `batch_size`, `seed` and `device`."""

import numpy as np
import torch
from own_datasets import Augmented, Shuffled, Stream
from torch.utils.data import TensorDataset

from ampsweep.data.digits import Digits
from ampsweep.data.image_folder import ImageFolder
from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.stream_dataset import StreamDataset
from ampsweep.data.synthetic import SyntheticImages, SyntheticRegression, SyntheticTokens
from ampsweep.data.text import Text
from ampsweep.data.tokens import Tokens

NUM_SYNTHETIC = 40
"""Items of synthetic data, in batches of any size."""


def synthetic_regression(_, *, num_batches=None, **common):
    return SyntheticRegression(in_features=3, out_features=2, **_sizes(num_batches, common))


def synthetic_tokens(_, *, num_batches=None, **common):
    return SyntheticTokens(vocab_size=11, seq_len=6, **_sizes(num_batches, common))


def synthetic_images(_, *, num_batches=None, **common):
    return SyntheticImages(image_size=8, in_channels=1, num_classes=4, **_sizes(num_batches, common))


def digits(_, **common):
    return Digits(val_fraction=0.05, **common)


def text(_, **common):
    return Text(seq_len=32, val_fraction=0.1, num_val_batches=3, **common)


def tokens(folder, **common):
    path = folder / "ids.bin"
    np.random.default_rng(0).integers(0, 500, 4000).astype(np.uint16).tofile(path)
    return Tokens(path=str(path), vocab_size=500, seq_len=32, val_fraction=0.1, num_val_batches=3, **common)


def map_dataset(_, **common):
    items = TensorDataset(torch.arange(30.0), torch.arange(30))
    return MapDataset(train=items, val=items, **common)


def augmented(_, **common):
    return MapDataset(train=Augmented(30), val=Augmented(21), num_workers=0, **common)


def image_folder(folder, **common):
    from PIL import Image

    for number in range(30):
        file = folder / "images" / f"class {number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 12), (number, 7 * number, 100)).save(file)
    return ImageFolder(
        path=str(folder / "images"),
        image_size=6,
        num_classes=2,
        val_fraction=0.3,
        augment=True,
        num_workers=0,
        **common,
    )


def stream(_, **common):
    return StreamDataset(train=Stream(), val=Stream(21), num_workers=0, **common)


def shuffled_stream(_, **common):
    return StreamDataset(train=Shuffled(), val=Stream(21), num_workers=0, **common)


def stored_rows(_, **common):
    return MapDataset(
        train=_rows(30).with_transform(_noisy), val=_rows(21).with_format("torch"), num_workers=0, **common
    )


def streamed_rows(_, **common):
    train = _rows(30).to_iterable_dataset(num_shards=3).shuffle(seed=5, buffer_size=7).with_format("torch")
    val = _rows(21).to_iterable_dataset().with_format("torch")
    return StreamDataset(train=train, val=val, num_workers=0, **common)


def own(_, **common):
    return OwnData(**common)


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


def _sizes(num_batches, common):
    return {"num_batches": num_batches or NUM_SYNTHETIC // common["batch_size"], **common}


def _rows(length):
    import datasets

    return datasets.Dataset.from_dict({"x": [[float(i), 2.0] for i in range(length)], "y": [*range(length)]})


def _noisy(batch):
    return {"x": [torch.tensor(x) + torch.rand(2) for x in batch["x"]], "y": batch["y"]}


SYNTHETIC = [synthetic_regression, synthetic_tokens, synthetic_images]
OF_THE_SUITE = [*SYNTHETIC, digits, text, tokens, map_dataset]
STREAMS = [stream, shuffled_stream, streamed_rows]
EVERY = [*OF_THE_SUITE, augmented, image_folder, stored_rows, *STREAMS, own]
NEEDS = {image_folder: "PIL", stored_rows: "datasets", streamed_rows: "datasets"}
"""Packages that not every environment has."""
