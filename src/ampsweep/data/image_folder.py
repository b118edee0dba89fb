"""A folder of images, a folder a class, read by Pillow."""

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ampsweep.argument_checks import require_fraction, require_positive
from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.seeding import generator

_SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_AREA: Final = 0.35, 1.0
_RATIO: Final = 3 / 4, 4 / 3
"""The part of a training image that is cut out at random: its share of the area, and its width over its height."""
_SHORT_SIDE: Final = 256 / 224
"""The short side of a validation image before its centre is cut out, over the side of what is cut out."""


class ImageFolder(MapDataset):
    """Images in a folder of folders, one for each class; classes are numbered in the order of their names.

    Inputs are (B, 3, S, S) float32 in [0, 1], targets (B,) int64. Without folders `train` and `val` in `path`, a share
    of the images, the same for every seed, is held out. With `augment` a random part of each training image is resized
    to S x S, and mirrored half of the time; else, and for validation, it is the centre of the image.
    """

    def __init__(
        self, *, path: str, image_size: int, num_classes: int, val_fraction: float, augment: bool, **settings: Any
    ) -> None:
        """List the images; `settings` are those of `MapDataset`.

        Raises:
            ValueError: Pillow is missing, the folder has not as many classes or no image of one, an image is damaged,
                or what `MapDataset` refuses.
        """
        require_positive(image_size=image_size, num_classes=num_classes)
        require_fraction(val_fraction=val_fraction)
        if find_spec("PIL") is None:
            raise ValueError("images are read by Pillow, which is not installed: pip install 'ampsweep[images]'")
        root = Path(path).expanduser()
        splits = [root / "train", root / "val"]
        if all(split.is_dir() for split in splits):
            train, val = (_images(split, num_classes) for split in splits)
        else:
            train, val = _held_out(_images(root, num_classes), val_fraction)
        files = (ImageFiles(train, image_size, augment=augment), ImageFiles(val, image_size, augment=False))
        super().__init__(train=files[0], val=files[1], **settings)


class ImageFiles(Dataset[Any]):
    """Image files with their classes."""

    def __init__(self, files: list[tuple[str, int]], image_size: int, *, augment: bool) -> None:
        self._files, self._size, self._augment = files, image_size, augment

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        """Read an image, (3, S, S) float32 in [0, 1], and its class; a ``ValueError`` names a file that has none."""
        from PIL import Image, UnidentifiedImageError

        file, label = self._files[item]
        try:
            with Image.open(file) as image:
                side = self._size
                box, mirrored = (_random_box(*image.size), random.random() < 0.5) if self._augment else (None, False)
                if box is None:
                    box = _centre_box(*image.size, 1 / _SHORT_SIDE)
                pixels = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box=box)
        except UnidentifiedImageError as error:
            raise ValueError(f"image {file} cannot be read: it is damaged, or no image") from error
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
            told = getattr(error, "strerror", None) or str(error) or "it is damaged"  # a broken PNG is a SyntaxError
            raise ValueError(f"image {file} cannot be read: {told}") from error
        values = np.asarray(pixels, dtype=np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy(np.ascontiguousarray(values[:, :, ::-1] if mirrored else values)), label


def _images(root: Path, num_classes: int) -> list[tuple[str, int]]:
    try:
        folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise ValueError(f"data folder {root} cannot be read: {error.strerror}") from error
    if len(folders) != num_classes:
        raise ValueError(f"num_classes is {num_classes}, but data folder {root} has {len(folders)} folders")
    found = []
    for label, folder in enumerate(folders):
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
        if not files:
            raise ValueError(f"data folder {folder} has no image")
        found += [(str(file), label) for file in files]
    return found


def _held_out(files: list[tuple[str, int]], val_fraction: float) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    order = torch.randperm(len(files), generator=generator("split")).tolist()
    num_val = max(1, round(val_fraction * len(files)))
    held_out = set(order[:num_val])
    train = [file for index, file in enumerate(files) if index not in held_out]
    return train, [files[index] for index in sorted(held_out)]


def _random_box(width: int, height: int) -> tuple[float, float, float, float] | None:
    """A part of random size, shape and place, as in "Going Deeper with Convolutions" (Szegedy et al., 2015), section 6.

    None if ten of them do not lie within the image.
    """
    for _ in range(10):
        area = random.uniform(*_AREA) * width * height
        ratio = np.exp(random.uniform(*np.log(_RATIO)))
        across, down = float(np.sqrt(area * ratio)), float(np.sqrt(area / ratio))
        if across <= width and down <= height:
            left, top = random.uniform(0, width - across), random.uniform(0, height - down)
            return left, top, left + across, top + down
    return None


def _centre_box(width: int, height: int, share: float) -> tuple[float, float, float, float]:
    """The square in the centre whose side is a share of the short side."""
    side = share * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
