"""Redaction: keeps keys, tokens and passwords out of everything that is written, shown or sent."""

import os
import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")

HIDDEN: Final = "***"

_OF_TEXT: Final = (
    r"(?:pad|eos|bos|unk|unknown|sep|cls|mask|begin|start|end|stop|special|image|audio|video|eot|sot"
    r"|first|last|next|prev|new|max|min|num|per)"
)
"""Words before `token` that mean a token of a vocabulary, not a secret."""
_NAME: Final = (
    r"(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|secret(?:[_-]?key)?|password|passwd|credentials?"
    rf"|(?:access|auth|api|bearer|refresh|hub|hf|wandb)token|(?!{_OF_TEXT}[_-]token)[a-z0-9]+[_-]token)"
)
_SECRET_NAME: Final = re.compile(rf"(?:^|[._-]){_NAME}$|^token$", re.IGNORECASE)
_SECRET_VARIABLE: Final = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_MIN_LENGTH: Final = 12
"""Values shorter than this are not searched for in texts, where they could be something else."""

_ASSIGNED: Final = re.compile(
    rf"((?<![\w.-])(?:(?:[\w.-]*[._-])?{_NAME}['\"]?\s*[=:]\s*|(?:[\w.-]*[.-])?token=))"
    r"('[^']*'|\"[^\"]*\"|[^\s,}\]]+)",
    re.IGNORECASE,
)
_KNOWN_FORMS: Final = re.compile(
    r"\b(?:hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|wandb_v1_\w{20,})"
)
_IN_URL: Final = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")


def hide(text: str, beside: object = None) -> str:
    """Replace every secret in ``text`` by `***`.

    Secrets are the values of environment variables with a secret's name (WANDB_API_KEY, HF_TOKEN), values assigned to
    such a name (`model.api_key=...`), passwords in addresses, tokens of well-known forms, and the values of such names
    in ``beside``, such as a config.
    """
    return _hide(text, _secrets(beside))


def hidden(value: T) -> T:
    """Copy ``value``, a tree of lists and dicts, with `hide` applied to texts and `***` for values with secret names.

    A secret named in one place is hidden in all texts of the tree: one in a run's config is hidden in its error too.
    """
    redacted: T = _hidden(value, _secrets(value))
    return redacted


def _hide(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    text = _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)
    text = _IN_URL.sub(rf"\g<1>{HIDDEN}", text)
    return _KNOWN_FORMS.sub(HIDDEN, text)


def _hidden(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return _hide(value, secrets)
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, item) else _hidden(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, secrets) for item in value]
    return value


def _secrets(value: object) -> list[str]:
    """Values of secret environment variables and of secret names in ``value``, the longest first."""
    found = {text for name, text in os.environ.items() if _SECRET_VARIABLE.search(name.upper())} | {*_named(value)}
    return sorted((text for text in found if len(text) >= _MIN_LENGTH), key=len, reverse=True)


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if _is_secret(key, item):
                yield str(item)
            yield from _named(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named(item)


def _is_secret(key: Any, item: Any) -> bool:
    """Tell whether `key` names a secret; a number counts too, because a password of digits is read as a number."""
    is_value = isinstance(item, str | int | float) and not isinstance(item, bool)
    return is_value and _SECRET_NAME.search(str(key)) is not None
