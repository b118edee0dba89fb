"""How a page tells what on it is ours, and what that was when it was saved.

Marks are link definitions to nowhere, which no Markdown renderer shows: `[//]: # (ampsweep about memory=1a2b3c4d)`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

PREFIX: Final = "ampsweep-"
ABOUT: Final = "about"

_MARK: Final = re.compile(r"\[//\]: # \(ampsweep (\S+)([^)\n]*)\)")


def marked(text: str, key: str, saved: Mapping[str, str] | None = None) -> str:
    """Markdown with the mark of the part `key`; `saved` are the digests of all parts of the page."""
    return f"{text}\n\n{_mark(key, saved or {})}"


def key_in(text: str) -> str | None:
    """The part that a Markdown text is; None for a text that is not ours."""
    found = _MARK.search(text)
    return None if found is None else found[1]


def saved_in(text: str) -> dict[str, str]:
    """The digests that the mark in a Markdown text tells."""
    found = _MARK.search(text)
    return {} if found is None else dict(pair.split("=", 1) for pair in found[2].split() if "=" in pair)


def remarked(text: str, saved: Mapping[str, str]) -> str:
    """The text with other digests in its mark."""
    return _MARK.sub(lambda found: _mark(found[1], saved), text, count=1)


def digest(content: Any) -> str:
    """Eight hex digits, equal for equal JSON; W&B's app adds references, which mean nothing."""
    return hashlib.sha256(json.dumps(_plain(content), sort_keys=True).encode()).hexdigest()[:8]


def _mark(key: str, saved: Mapping[str, str]) -> str:
    return f"[//]: # (ampsweep {' '.join([key, *(f'{name}={value}' for name, value in saved.items())])})"


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items() if key != "ref"}
    return [_plain(value) for value in content] if isinstance(content, list) else content
