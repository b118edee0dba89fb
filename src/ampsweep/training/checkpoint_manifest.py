"""The manifest of a checkpoint of several ranks: its files with their digests, and where the parts of its tensors are.

torch writes the latter as a pickle (`.metadata`), which could run any code; nothing here reads that.
"""

from collections.abc import Iterable
from hashlib import blake2b, file_digest
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from ampsweep.record import MANIFEST, replacing
from ampsweep.record.digests import DIGEST, is_as_sealed, sealed

FORMAT: Final = 4
STATE: Final = "state.pt"
"""The file with everything but the large tensors, as rank 0 has it."""
_DIGEST_BYTES: Final = 16


class DamagedError(ValueError):
    """Raised for a directory that is no whole checkpoint; a clause that follows its path."""


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a tensor: its offsets and sizes in that, and its place in a file, in bytes."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


class StoredTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of which each rank has written parts."""

    dtype_name: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype_name)
        return found


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A file as its rank has left it."""

    num_bytes: int
    blake2b: str
    """Digest of 16 bytes, in hex."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a checkpoint of several ranks."""

    world_size: int
    files: dict[str, StoredFile]
    tensors: dict[str, StoredTensor]
    sharded: frozenset[str]
    """Names of the tensors that were sharded over the ranks, or replicated by the same means (DTensor)."""
    aliases: dict[str, str]
    """Names of parameters that are another one, which is stored (tied weights), and the name of that."""
    format: int = FORMAT

    def write(self, directory: Path) -> None:
        text = msgspec.json.encode(self, order="deterministic").decode()
        with replacing(directory / MANIFEST) as stream:
            stream.write(sealed(text.removesuffix("}") + "\n}\n").encode())

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read the manifest of a checkpoint.

        Raises:
            DamagedError: it has none, or it is not as it was written.
        """
        try:
            content = (directory / MANIFEST).read_bytes()
            parts: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
            if DIGEST not in parts or not is_as_sealed(content, parts):
                raise DamagedError(f"{MANIFEST} is damaged")
            if parts.get("format") != FORMAT:
                raise DamagedError(f"it is not a checkpoint of this version (format {FORMAT})")
            manifest = msgspec.convert(parts, cls)
        except FileNotFoundError as error:
            raise DamagedError(f"it has no {MANIFEST}") from error
        except (OSError, UnicodeError, msgspec.MsgspecError) as error:
            raise DamagedError(f"{MANIFEST} is damaged") from error
        if (fault := manifest._fault()) is not None:
            raise DamagedError(f"{MANIFEST} is damaged: {fault}")
        return manifest

    def verify(self, directory: Path, names: Iterable[str]) -> None:
        """Compare files with their digests.

        Raises:
            DamagedError: one is missing, or is not as it was written.
        """
        for name in names:
            try:
                found = stored_file(directory / name)
            except OSError as error:
                raise DamagedError(f"{name} cannot be read: {error.strerror}") from error
            if found != self.files[name]:
                raise DamagedError(f"{name} is damaged: it does not match its digest")

    def _fault(self) -> str | None:
        """Find what no save could have written: a name outside the directory, a tensor that is not whole."""
        for name in self.files:
            if Path(name).name != name:
                return f"{name} is no name of a file"
        for name, tensor in self.tensors.items():
            if not isinstance(getattr(torch, tensor.dtype_name, None), torch.dtype):
                return f"{name} has no dtype"
            if not all(_lies_within(chunk, tensor.shape) and chunk.file in self.files for chunk in tensor.chunks):
                return f"{name} has parts that are not its own"
            if sum(prod(chunk.sizes) for chunk in tensor.chunks) != prod(tensor.shape):
                return f"{name} is not whole"
        if not all(name in self.tensors for name in self.aliases.values()):
            return "a tensor is missing"
        return None


def own_file(rank: int) -> str:
    """The name of the file with what a rank has for itself; rank 0's is part of the state."""
    return f"rank-{rank}.pt"


def stored_file(path: Path) -> StoredFile:
    """Take the facts of a file, reading all of it."""
    with path.open("rb") as stream:
        digest = file_digest(stream, lambda: blake2b(digest_size=_DIGEST_BYTES))
        return StoredFile(stream.tell(), digest.hexdigest())


def _lies_within(chunk: Chunk, shape: tuple[int, ...]) -> bool:
    return len(chunk.offsets) == len(chunk.sizes) == len(shape) and all(
        min(offset, size) >= 0 and offset + size <= whole
        for offset, size, whole in zip(chunk.offsets, chunk.sizes, shape, strict=True)
    )
