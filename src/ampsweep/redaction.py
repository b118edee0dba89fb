"""Keeps keys, tokens and passwords out of everything that is written, shown or sent."""

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
"""Words before a token that is one of a vocabulary."""
_NAME: Final = (
    r"(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|secret(?:[_-]?key)?|password|passwd|credentials?"
    rf"|(?:access|auth|api|bearer|refresh|hub|hf|wandb)token|(?!{_OF_TEXT}[_-]token)[a-z0-9]+[_-]token)"
)
_SECRET_NAME: Final = re.compile(rf"(?:^|[._-]){_NAME}$|^token$", re.IGNORECASE)
_SECRET_VARIABLE: Final = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_MIN_LENGTH: Final = 12
"""Shorter values are not hidden where a text happens to hold them: there they could be something else."""

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
    """``text`` with `***` for every secret in it.

    Secrets are the values of this process's variables that are named like one (WANDB_API_KEY, HF_TOKEN), what is
    assigned to such a name (`model.api_key=...`), passwords in addresses, tokens of well-known forms; and what is named
    like one in ``beside``, such as a config.
    """
    return _hide(text, _secrets(beside))


def hidden(value: T) -> T:
    """``value`` with every text in its lists and dicts as `hide` makes it, and what is named like a secret as `***`.

    Where the same stands in another of its texts, such as the error of a run beside its config, it is hidden there too.
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
    """Values of secret variables and of what is named so in ``value``, the longest first."""
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
    """Digits alone are a number to whoever reads a command line, but may be a password."""
    is_value = isinstance(item, str | int | float) and not isinstance(item, bool)
    return is_value and _SECRET_NAME.search(str(key)) is not None
