"""Settings on a script's command line, and the precision that they claim."""

import ast
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ampsweep.config.claims import claimed_precision

_SWITCHES: Final = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "amp": "amp", "use_amp": "amp", "tf32": "tf32"}
_CHOICES: Final = ("mixed_precision", "precision", "amp_dtype", "autocast_dtype", "dtype", "torch_dtype")
"""Options by their last name without dashes: `--trainer.precision bf16-mixed`, `model.dtype=float16`, `--bf16`."""


def settings_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Read `--name value`, `--name=value`, `--switch` and `name=value`; other words are listed as `arguments`.

    >>> settings_of(["train.txt", "--lr", "1e-3", "--bf16", "--n-layer=2", "data.size=8", "--names", "a", "b"])
    {'lr': 0.001, 'bf16': True, 'n_layer': 2, 'data.size': 8, 'names': 'a', 'arguments': ['train.txt', 'b']}
    """
    found: dict[str, Any] = {}
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.lstrip("-+").partition("=")
        is_option = word.startswith("-") and not _is_number(word)
        if not name or not (is_option or equals):
            rest.append(word)
            continue
        if not equals and words and (not words[0].startswith("-") or _is_number(words[0])):
            value, equals = words.pop(0), "="
        found[name.replace("-", "_")] = _value(value) if equals else True
    return found | ({"arguments": rest} if rest else {})


def claim_of(command: Sequence[str], arm: str | None = None) -> str | None:
    """The words for a precision in the name of the arm, else in a command line; None if none are known.

    >>> claim_of(["python", "train.py", "--amp", "--amp-dtype", "bfloat16"]), claim_of(["t.py", "--bf16", "False"])
    ('bfloat16', 'fp32')
    >>> claim_of(["accelerate", "launch", "--mixed_precision", "fp16", "t.py"]), claim_of(["python", "t.py"])
    ('fp16', None)
    >>> claim_of(["python", "t.py", "--bf16", "0"], arm="bf16")  # 0 is the seed
    'bf16'
    """
    if arm is not None and claimed_precision(arm) is not None:
        return arm
    named = {name.rpartition(".")[2]: value for name, value in settings_of(command).items()}
    for name in _CHOICES:
        if name in named and claimed_precision(str(named[name])) is not None:
            return str(named[name])
    switched = {name: named[name] not in (False, 0, "none") for name in _SWITCHES if name in named}
    if any(switched.values()):
        words = [_SWITCHES[name] for name, is_on in switched.items() if is_on]
        return "+".join([words[0], *(["tf32"] if words[0] != "tf32" and "tf32" in words else [])])
    return "fp32" if switched.keys() - {"tf32", "fp32"} or "no_amp" in named else None


def _value(text: str) -> Any:
    """A number or truth value as Python's parsers read it, else the text."""
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text.capitalize() if text.lower() in ("true", "false") else text)
        if isinstance(value, int | float):
            return value
    return text


def _is_number(word: str) -> bool:
    return not isinstance(_value(word), str | bool)
