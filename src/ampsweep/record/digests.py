"""Digests of a run's files: whether a file is as its run has left it."""

import re
from hashlib import blake2b
from typing import Any, Final

_NUM_BYTES: Final = 16
DIGEST: Final = "digest"
"""Key of a record's digest, the last one."""
_SEAL: Final = re.compile(rb'"[^"]*": "([0-9a-f]{32})"\n}\n\Z')
"""The end of a sealed record. Any key: the digest covers its name, too."""
_SEAL_LENGTH: Final = len(f'"{DIGEST}": "{"0" * 2 * _NUM_BYTES}"\n}}\n')
CHANGED: Final = "has been changed since it was written: it does not match its digest"


def digest_of(content: bytes) -> str:
    """The digest of 16 bytes, in hex."""
    return blake2b(content, digest_size=_NUM_BYTES).hexdigest()


def sealed(text: str) -> str:
    """Add the digest of all that goes before as the last key of a JSON object, which is indented by one space."""
    assert text.endswith("\n}\n")
    whole = f'{text.removesuffix(chr(10) + "}" + chr(10))},\n "{DIGEST}": "'
    return f'{whole}{digest_of(whole.encode())}"\n}}\n'


def is_as_sealed(content: bytes, parsed: dict[str, Any]) -> bool:
    """Return True if a record's file, which holds `parsed`, matches its digest; one edited on purpose has none."""
    seal = _SEAL.search(content[-2 * _SEAL_LENGTH :])
    if seal is None:
        return DIGEST not in parsed
    told = seal[1]
    length = len(content) - len(told) - len('"\n}\n')
    return digest_of(content[:length]).encode() == told
