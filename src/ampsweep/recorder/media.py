"""Images and tables of an evaluation, as files in the run's directory that its row names."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ampsweep.metrics import MEDIA
from ampsweep.records import replacing


class MediaError(ValueError):
    """Raised for something that is neither an image nor a table."""


def write_media(directory: Path, media: Mapping[str, Any], step: int) -> dict[str, list[str]]:
    """Write images as PNG and tables as JSON; return their paths within the directory by the keys of a row.

    Raises MediaError as `prepared` does, and OSError.
    """
    row: dict[str, list[str]] = {}
    (directory / MEDIA).mkdir(exist_ok=True)
    for name, parts in prepared(media).items():
        row[f"{MEDIA}{name}"] = paths = []
        for number, part in enumerate(parts):
            ending = f"-{number}" * (len(parts) > 1) + (".json" if isinstance(part, dict) else ".png")
            paths.append(f"{MEDIA}{name}-{step}{ending}")
            with replacing(directory / paths[-1]) as stream:
                if isinstance(part, dict):
                    stream.write(json.dumps(part).encode())
                else:
                    part.save(stream, "PNG")
    return row


def prepared(media: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Convert each image to Pillow's, and each table to its `columns` and `data`; raise MediaError for anything else.

    An image is Pillow's, or values (H, W), (H, W, 1 to 4) of NumPy, (H, W), (1 to 4, H, W) of torch: bytes, or from 0
    to 1. Several are in a list, or (B, ...) in a tensor of torch. A table is a list of rows, mappings of plain values.
    """
    if not isinstance(media, Mapping):
        raise MediaError(f"media must return a mapping of images and tables, got {type(media).__name__}")
    found: dict[str, list[Any]] = {}
    for name, value in media.items():
        if not re.fullmatch(r"[\w.-]+", str(name)):
            raise MediaError(f"media must have names of letters, digits, '_', '-' and '.', got {name!r}")
        several = isinstance(value, list | tuple) or (isinstance(value, Tensor) and value.dim() == 4)
        parts = [*value] if several else [value]
        is_table = several and parts and all(isinstance(part, Mapping) for part in parts)
        found[str(name)] = [_table(name, parts)] if is_table else [_image(name, part) for part in parts]
    return found


def _table(name: str, rows: Sequence[Mapping[Any, Any]]) -> dict[str, list[Any]]:
    columns = [*dict.fromkeys(column for row in rows for column in row)]
    cells = [[row.get(column) for column in columns] for row in rows]
    data = [[cell.item() if isinstance(cell, Tensor | np.generic) else cell for cell in row] for row in cells]
    if odd := [cell for row in data for cell in row if not isinstance(cell, str | int | float | None)]:
        raise MediaError(f"media: a table holds strings and numbers, got {type(odd[0]).__name__} in {name}")
    return {"columns": [*map(str, columns)], "data": data}


def _image(name: str, value: Any) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MediaError("media: images need Pillow: pip install -e '.[images]'") from error
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, Tensor):
        value = (value.float() if value.is_floating_point() else value).numpy(force=True)
        value = np.moveaxis(value, 0, 2) if value.ndim == 3 else value
    if not isinstance(value, np.ndarray):
        raise MediaError(f"media must be images or tables (lists of mappings), got {type(value).__name__} as {name}")
    if value.dtype.kind in "fb":
        value = np.rint(np.clip(np.nan_to_num(value.astype(np.float32)), 0, 1) * 255).astype(np.uint8)
    try:
        return Image.fromarray(np.ascontiguousarray(value.squeeze(2) if value.shape[2:] == (1,) else value))
    except (TypeError, ValueError) as error:
        wanted = "(H, W) or (H, W, channels), of torch (channels, H, W), in bytes or from 0 to 1"
        raise MediaError(f"media: an image is {wanted}, got {value.dtype} {value.shape} in {name}") from error
