"""Digests of a run's files: whether a file is as its run has left it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

_NUM_BYTES: Final = 16
DIGEST: Final = "digest"
"""Key of a record's digest, the last one."""
_SEAL: Final = re.compile(rb'"[^"]*": "([0-9a-f]{32})"\n}\n\Z')
"""The end of a sealed record. Any key: the digest covers its name, too."""
_SEAL_LENGTH: Final = len(f'"{DIGEST}": "{"0" * 2 * _NUM_BYTES}"\n}}\n')
CHANGED: Final = "has been changed since it was written: it does not match its digest"


class RowsDigest:
    """The digest of rows while they are written."""

    def __init__(self, content: bytes | memoryview = b"") -> None:
        self._digest = blake2b(content, digest_size=_NUM_BYTES)

    def update(self, content: bytes) -> None:
        self._digest.update(content)

    def __str__(self) -> str:
        return self._digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The bytes of a history since the stretch before: the rows of a process, and of killed ones before it."""

    end: int
    """Number of bytes up to here."""
    blake2b: str
    """Digest of 16 bytes, in hex."""


def change_of(content: bytes, stretches: Sequence[Stretch], *, is_ended: bool) -> str | None:
    """Compare a history with its digests; return a clause if it has been changed, None if not.

    Rows beyond the last stretch are those of a killed process; one that ended (`is_ended`) left none.
    """
    begin, bytes_of = 0, memoryview(content)
    for stretch in stretches:
        if str(RowsDigest(bytes_of[begin : stretch.end])) != stretch.blake2b:
            return CHANGED
        begin = stretch.end
    return "has been added to since its run ended" if is_ended and stretches and len(content) > begin else None


def sealed(text: str) -> str:
    """Add the digest of all that goes before as the last key of a JSON object, which is indented by one space."""
    assert text.endswith("\n}\n")
    whole = f'{text.removesuffix(chr(10) + "}" + chr(10))},\n "{DIGEST}": "'
    return f'{whole}{RowsDigest(whole.encode())}"\n}}\n'


def is_as_sealed(content: bytes, parsed: dict[str, Any]) -> bool:
    """Return True if a record's file, which holds `parsed`, matches its digest; one edited on purpose has none."""
    seal = _SEAL.search(content[-2 * _SEAL_LENGTH :])
    if seal is None:
        return DIGEST not in parsed
    told = seal[1]
    length = len(content) - len(told) - len('"\n}\n')
    return str(RowsDigest(content[:length])).encode() == told
