"""Digests that show whether a run's files are as the run left them."""

import re
from hashlib import blake2b
from typing import Any, Final

_NUM_BYTES: Final = 16
DIGEST: Final = "digest"  # last key of a record
_SEAL: Final = re.compile(rb'"[^"]*": "([0-9a-f]{32})"\n}\n\Z')
"""The end of a sealed record; any key, since the digest covers the key, too."""
_SEAL_LENGTH: Final = len(f'"{DIGEST}": "{"0" * 2 * _NUM_BYTES}"\n}}\n')
CHANGED: Final = "has been changed since it was written: it does not match its digest"


def digest_of(content: bytes) -> str:
    return blake2b(content, digest_size=_NUM_BYTES).hexdigest()


def sealed(text: str) -> str:
    """Append the digest of everything before it as the last key of a JSON object indented by one space."""
    assert text.endswith("\n}\n")
    whole = f'{text.removesuffix(chr(10) + "}" + chr(10))},\n "{DIGEST}": "'
    return f'{whole}{digest_of(whole.encode())}"\n}}\n'


def is_as_sealed(content: bytes, parsed: dict[str, Any]) -> bool:
    """Return True if a record's file, which holds `parsed`, matches its digest or has none."""
    seal = _SEAL.search(content[-2 * _SEAL_LENGTH :])
    if seal is None:
        return DIGEST not in parsed
    digest = seal[1]
    length = len(content) - len(digest) - len('"\n}\n')
    return digest_of(content[:length]).encode() == digest
