"""Token ids from a memory-mapped file, as nanoGPT writes them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ampsweep.argument_checks import require_fraction, require_positive
from ampsweep.data.fingerprint import digest
from ampsweep.data.token_crops import Crops, TokenCrops, readable_file

_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
_NUM_SAMPLES = 64
_SAMPLE_IDS = 4096
_SCAN_IDS = 2**24


@dataclass(frozen=True)
class TokenFile:
    """The ids from ``start`` to ``stop`` of a little-endian file without a header, read when they are needed."""

    path: Path
    dtype: np.dtype[Any]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        ids: NDArray[Any] = self.map()[positions]
        return ids

    def map(self) -> NDArray[Any]:
        # Mapped anew for each batch, as nanoGPT does: pages touched through a lasting map would count as memory of the
        # process, which the suite reports.
        return np.memmap(self.path, self.dtype, mode="r", offset=self.start * self.dtype.itemsize, shape=(len(self),))


class Tokens(TokenCrops):
    """A ``.bin`` of token ids and, for validation, either a second one or the tail of the first.

    The fingerprint covers the type and size of each file and 64 evenly spaced pieces of 4096 ids: files can be larger
    than memory.
    """

    def __init__(
        self,
        *,
        path: str,
        vocab_size: int,
        dtype: str = "uint16",
        val_path: str | None = None,
        val_fraction: float,
        **crops: Unpack[Crops],
    ) -> None:
        """Map the files; ``val_fraction`` counts only without a ``val_path``.

        Raises:
            ValueError: a file is missing, unreadable, empty, no multiple of ``dtype`` or shorter than a batch.
        """
        require_positive(vocab_size=vocab_size)
        require_fraction(val_fraction=val_fraction)
        self.vocab_size = vocab_size
        self._files = [_whole(path, dtype)] + ([] if val_path is None else [_whole(val_path, dtype)])
        train, val = self._files if len(self._files) == 2 else _split(self._files[0], val_fraction)
        self.fingerprint = digest(*(part for file in self._files for part in _fingerprint_parts(file)))
        source = f"data file {path}" if val_path is None else f"data file {path} with {val_path}"
        super().__init__(train, val, source=source, **crops)

    def validate(self) -> None:
        """Read every id; raise a ``ValueError`` that names the position of the first one outside the vocabulary."""
        for file in self._files:
            ids = file.map()
            for first in range(0, len(ids), _SCAN_IDS):
                chunk = ids[first : first + _SCAN_IDS]
                wrong = np.flatnonzero((chunk < 0) | (chunk >= self.vocab_size))
                if len(wrong):
                    raise ValueError(
                        f"data file {file.path} has token id {chunk[wrong[0]]} at position {first + wrong[0]}, "
                        f"outside the vocabulary of {self.vocab_size}"
                    )


def _whole(path: str, dtype: str) -> TokenFile:
    if dtype not in _DTYPES:
        raise ValueError(f"dtype of token ids must be one of {', '.join(_DTYPES)}, got {dtype}")
    kind = np.dtype(dtype).newbyteorder("<")
    file = readable_file(path)
    num_ids, rest = divmod(file.stat().st_size, kind.itemsize)
    if rest:
        raise ValueError(
            f"data file {path} is no sequence of {dtype}: its size is no multiple of {kind.itemsize} bytes"
        )
    return TokenFile(file, kind, 0, num_ids)


def _split(file: TokenFile, val_fraction: float) -> tuple[TokenFile, TokenFile]:
    num_train = round(len(file) * (1 - val_fraction))
    return replace(file, stop=num_train), replace(file, start=num_train)


def _fingerprint_parts(file: TokenFile) -> list[str | bytes]:
    ids = file.map()
    starts = np.linspace(0, max(0, len(ids) - _SAMPLE_IDS), _NUM_SAMPLES, dtype=np.int64)
    return [str(file.dtype), str(len(ids)), *(ids[start : start + _SAMPLE_IDS].tobytes() for start in starts)]
