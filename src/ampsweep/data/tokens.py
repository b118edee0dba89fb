"""Crops of one long sequence of tokens: of memory-mapped files as nanoGPT writes them, and of text as bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ampsweep.data.base import Batch, to_device
from ampsweep.data.fingerprint import digest
from ampsweep.data.seeding import generator

_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
_NUM_SAMPLES = 64
_SAMPLE_IDS = 4096
_SCAN_IDS = 2**24
_AT_ONCE: Final = 2**12  # training crops that are drawn together, in their order: the same in batches of any size


@dataclass(frozen=True)
class TokenFile:
    """The ids from ``start`` to ``stop`` of a little-endian file without a header, read on access."""

    path: Path
    dtype: np.dtype[Any]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, positions: NDArray[np.int64]) -> Any:
        return self.map()[positions]

    def map(self) -> NDArray[Any]:
        # Mapped again for each batch, as nanoGPT does: pages touched through a lasting map would count as memory of the
        # process in the suite's figures.
        return np.memmap(self.path, self.dtype, mode="r", offset=self.start * self.dtype.itemsize, shape=(len(self),))


class TokenCrops:
    """Batches of token ids (B, seq_len) and the ids that follow them, int64.

    Training crops start anywhere, so there are no epochs. Validation has ``num_val_batches`` batches of crops spread
    evenly over the held-out tokens, or fewer if there are not as many different crops.
    """

    num_train_batches: int | None = None

    def __init__(
        self,
        train: NDArray[Any] | TokenFile,
        val: NDArray[Any] | TokenFile,
        *,
        source: str,
        seq_len: int,
        num_val_batches: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        """Raise a ``ValueError`` if a sequence of ``source`` is too short for a batch or a crop."""
        for part, tokens, needed in (("training", train, batch_size * seq_len + 1), ("validation", val, seq_len + 1)):
            if len(tokens) < needed:
                raise ValueError(
                    f"{source} has {len(tokens)} tokens for {part}, but batches of {batch_size} with seq_len {seq_len} "
                    f"need at least {needed}"
                )
        self.batch_size = batch_size
        self.tokens_per_batch = batch_size * seq_len
        self._train, self._val = train, val
        self._seed, self._device = seed, device
        self._window = np.arange(seq_len + 1)
        num_crops = min(num_val_batches * batch_size, len(val) - seq_len)
        self._val_starts = np.arange(num_crops) * (len(val) - seq_len) // num_crops
        self.num_val_batches = -(-num_crops // batch_size)
        self._part: tuple[int, NDArray[np.int64]] = -1, np.empty(0, dtype=np.int64)
        """The number of the latest drawing, and its training crops."""

    def train_batch(self, index: int) -> Batch:
        starts, first = [], index * self.batch_size
        while (missing := (index + 1) * self.batch_size - first) > 0:
            part, within = divmod(first, _AT_ONCE)
            starts.append(self._starts(part)[within : within + missing])
            first += len(starts[-1])
        return self._cut(self._train, starts[0] if len(starts) == 1 else np.concatenate(starts))

    def val_batch(self, index: int) -> Batch:
        return self._cut(self._val, self._val_starts[index * self.batch_size : (index + 1) * self.batch_size])

    def val_batches(self) -> Iterator[Batch]:
        return map(self.val_batch, range(self.num_val_batches))

    def _starts(self, part: int) -> NDArray[np.int64]:
        if self._part[0] != part:  # kept only to save time: the starts are a function of (seed, part)
            num_starts = len(self._train) - len(self._window) + 1
            starts = torch.randint(num_starts, (_AT_ONCE,), generator=generator("crops", self._seed, part))
            self._part = part, starts.numpy()
        return self._part[1]

    def _cut(self, tokens: NDArray[Any] | TokenFile, starts: NDArray[np.int64]) -> Batch:
        crops = torch.from_numpy(tokens[starts[:, None] + self._window].astype(np.int64))
        inputs, targets = crops[:, :-1].contiguous(), crops[:, 1:].contiguous()
        return to_device(inputs, self._device), to_device(targets, self._device)


class Tokens(TokenCrops):
    """A ``.bin`` of token ids and, for validation, a second file or the tail of the first.

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
        **crops: Any,
    ) -> None:
        """``val_fraction`` counts only without a ``val_path``; a ``ValueError`` names an unusable file."""
        self.vocab_size = vocab_size
        self._files = [_whole(path, dtype)] + ([] if val_path is None else [_whole(val_path, dtype)])
        train, val = self._files[0], self._files[-1]
        if val_path is None:
            num_train = round(len(train) * (1 - val_fraction))
            train, val = replace(train, stop=num_train), replace(train, start=num_train)
        self.fingerprint = digest(*(part for file in self._files for part in _fingerprint_parts(file)))
        source = f"data file {path}" if val_path is None else f"data file {path} with {val_path}"
        super().__init__(train, val, source=source, **crops)

    def validate(self) -> None:
        """Read every id; raise a ``ValueError`` that names the position of the first id outside the vocabulary."""
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


class Text(TokenCrops):
    """The bytes of a text file, or of English text that ships with Python.

    Without a path the text is the module ``pydoc_data.topics``: the chapters of the Python language reference that
    ``help()`` prints, about 460,000 bytes. They, and the fingerprint, differ between Python versions. The text stays in
    the host's memory, one byte per token, and each batch is copied to the device.
    """

    vocab_size = 256

    def __init__(self, *, path: str | None = None, val_fraction: float, **crops: Any) -> None:
        """Hold out the last ``val_fraction`` of the bytes; a ``ValueError`` names an unreadable or too short file."""
        content = _python_topics() if path is None else readable_file(path).read_bytes()
        tokens = np.frombuffer(content, dtype=np.uint8)
        num_train = round(len(tokens) * (1 - val_fraction))
        self.fingerprint = digest(content)
        source = "the text of pydoc_data.topics" if path is None else f"data file {path}"
        super().__init__(tokens[:num_train], tokens[num_train:], source=source, **crops)


def _python_topics() -> bytes:
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise ValueError("this Python comes without pydoc_data.topics, the default text: give a path") from error
    return "\n".join(topics.values()).encode()


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


def _fingerprint_parts(file: TokenFile) -> list[str | bytes]:
    ids = file.map()
    starts = np.linspace(0, max(0, len(ids) - _SAMPLE_IDS), _NUM_SAMPLES, dtype=np.int64)
    return [str(file.dtype), str(len(ids)), *(ids[start : start + _SAMPLE_IDS].tobytes() for start in starts)]


def readable_file(path: str) -> Path:
    """The path of a file; raise a ``ValueError`` if it is missing, unreadable or empty."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise ValueError(f"data file {path} cannot be read: {error.strerror}") from error
    if empty:
        raise ValueError(f"data file {path} is empty")
    return file
