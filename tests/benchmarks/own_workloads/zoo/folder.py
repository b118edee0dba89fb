"""A folder of images, one subfolder a class, as torchvision's ``ImageFolder`` has it, read by Pillow."""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import Dataset


class ImageFolder(Dataset):
    """Images (1, 8, 8) below ``root/CLASS/*.png`` and the numbers of their classes, some of them moved by a pixel."""

    def __init__(self, root, moves):
        self.moves = moves
        folders = sorted(path for path in Path(root).iterdir() if path.is_dir())
        self.items = [(path, number) for number, folder in enumerate(folders) for path in sorted(folder.glob("*.png"))]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, item):
        path, number = self.items[item]
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"), dtype=np.float32) / 255
        if self.moves and random.random() < 0.5:
            pixels = np.roll(pixels, random.choice((-1, 1)), axis=1)
        return torch.from_numpy(pixels)[None].clone(), number


def write_digits(folder: Path) -> None:
    """Write scikit-learn's digits as PNG files: those to train on below ``train``, the others below ``val``."""
    found = load_digits()
    for number, (pixels, name) in enumerate(zip(found.images[:400], found.target, strict=False)):
        path = folder / ("train" if number < 320 else "val") / str(name) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype(np.uint8)).save(path)
