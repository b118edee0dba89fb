"""Images in a folder for each class, read by Pillow."""

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.seeding import held_out

_SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_AREA: Final = 0.35, 1.0  # a random crop's share of the area
_RATIO: Final = 3 / 4, 4 / 3  # its width over its height
_BORDER: Final = (1 - 224 / 256) / 2  # the share of a validation image's side that its centre crop leaves at each edge


class ImageFolder(MapDataset):
    """A folder of images for each class; classes are numbered in the order of their names.

    Inputs are (B, 3, S, S) float32 in [0, 1], targets (B,) int64. Without folders `train` and `val` in `path`, a share
    of the images is held out, the same for every seed. With `augment` a random crop of each training image is resized
    to S x S and mirrored half of the time; otherwise, and for validation, it is the centre of the image.
    """

    def __init__(
        self, *, path: str, image_size: int, num_classes: int, val_fraction: float, augment: bool, **settings: Any
    ) -> None:
        """`settings` are those of `MapDataset`, whose errors are raised, too.

        Raises a ``ValueError`` if Pillow or an image of a class is missing, or the number of classes is wrong.
        """
        if find_spec("PIL") is None:
            raise ValueError("images are read by Pillow, which is not installed: pip install 'ampsweep[images]'")
        root = Path(path).expanduser()
        splits = [root / "train", root / "val"]
        if all(split.is_dir() for split in splits):
            train, val = (_images(split, num_classes) for split in splits)
        else:
            files = _images(root, num_classes)
            parts = held_out(len(files), val_fraction)
            train, val = ([files[index] for index in sorted(part.tolist())] for part in parts)
        sets = ImageFiles(train, image_size, augment=augment), ImageFiles(val, image_size, augment=False)
        super().__init__(train=sets[0], val=sets[1], **settings)


class ImageFiles(Dataset[Any]):
    """Image files with their classes."""

    def __init__(self, files: list[tuple[str, int]], image_size: int, *, augment: bool) -> None:
        self._files, self._size, self._augment = files, image_size, augment

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        """Read an image, (3, S, S) float32 in [0, 1], and its class; a ``ValueError`` names an unreadable file."""
        from PIL import Image, ImageOps, UnidentifiedImageError

        file, label = self._files[item]
        try:
            with Image.open(file) as image:
                box, mirrored = (_random_box(*image.size), random.random() < 0.5) if self._augment else (None, False)
                size, pixels = (self._size, self._size), image.convert("RGB")
                if box is None:
                    pixels = ImageOps.fit(pixels, size, Image.Resampling.BILINEAR, bleed=_BORDER)
                else:
                    pixels = pixels.resize(size, Image.Resampling.BILINEAR, box=box)
        except UnidentifiedImageError as error:
            raise ValueError(f"image {file} cannot be read: it is damaged, or no image") from error
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it is damaged"  # a broken PNG is a SyntaxError
            raise ValueError(f"image {file} cannot be read: {reason}") from error
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


def _random_box(width: int, height: int) -> tuple[float, float, float, float] | None:
    """A random crop as in Szegedy et al., "Going Deeper with Convolutions", 2015, section 6; None if ten do not fit."""
    for _ in range(10):
        area = random.uniform(*_AREA) * width * height
        ratio = np.exp(random.uniform(*np.log(_RATIO)))
        across, down = float(np.sqrt(area * ratio)), float(np.sqrt(area / ratio))
        if across <= width and down <= height:
            left, top = random.uniform(0, width - across), random.uniform(0, height - down)
            return left, top, left + across, top + down
    return None
