"""Numbers, bytes, durations and errors as text, with the same digits and units everywhere."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Final

from ampsweep.user_code import place_of

MIB: Final = 2**20
GIB: Final = 2**30
BYTES_OF: Final = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB, "TiB": 2**40}  # units as torch names them
MAX_DECIMALS: Final = 6
_MISSPELLED: Final = 0.7  # likeness of "hidden" and "hidden_size"; "gpt" and "gpt_xl" have 0.67
_CONTROLS: Final = ("Cc", "Zl", "Zp")
_BIDIRECTIONAL: Final = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Bidirectional classes of the characters that reverse adjacent text."""
_FIGURE: Final = re.compile(
    r"(?<![\w.+-])(?:\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|(?<=step )\d+|\d+(?= ?(?:%|GiB|MiB|KiB|ms\b|s\b)))(?!\.?\w)"
)
"""A measured figure within a text: it has decimals, an exponent or a unit, or is a step. Other whole numbers (ids,
counts of cores) and parts of versions and paths do not match."""


def number(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, but never fewer than its integer part has.

    >>> number(6.1234), number(6123.4), number(0.000061234), number(0.0)
    ('6.12', '6123', '6.12e-05', '0')
    """
    if value == 0:
        return "0"
    places = decimals(value, digits)
    return f"{value:.{digits - 1}e}" if places > MAX_DECIMALS else f"{value:.{max(places, 0)}f}"


def signed(value: float, digits: int = 3) -> str:
    """`number` with a plus sign before positive values."""
    return f"+{number(value, digits)}" if value > 0 else number(value, digits)


def milliseconds(value: float) -> str:
    return f"{number(value)} ms"


def ratio(value: float) -> str:
    return f"{number(value)}x"


def num_bytes(value: float) -> str:
    """A number of bytes in a suitable unit.

    >>> num_bytes(3 * 2**29), num_bytes(2**20), num_bytes(-0.3), num_bytes(-2048.0)
    ('1.50 GiB', '1.00 MiB', '0 B', '-2.00 KiB')
    """
    for unit in ("GiB", "MiB", "KiB"):
        if abs(value) >= BYTES_OF[unit]:
            return f"{number(value / BYTES_OF[unit])} {unit}"
    return f"{round(value)} B"


def allocation(size: int) -> str:
    """The size of an allocation with four digits, so that nearly equal sizes look different.

    >>> allocation(2**40), allocation(37_000_000), allocation(512)
    ('1 TiB', '35.29 MiB', '512 bytes')
    """
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if size >= BYTES_OF[unit]), "bytes")
    return f"{size / BYTES_OF[unit]:.4g} {unit}"


def with_error(predicted: str, error_pct: float | None, digits: int = 2) -> str:
    """A prediction, with its error if the figure was measured: '7.17 MiB (+0.11%)'."""
    return predicted + ("" if error_pct is None else f" ({error_pct:+.{digits}f}%)")


def not_vouched_for(operators: Iterable[str]) -> str:
    """'; not vouched for: the memory of ...', to follow a prediction; empty without operators."""
    named = sorted({*operators})
    return f"; not vouched for: the memory of {', '.join(named)}" if named else ""


def percent(value: float) -> str:
    return f"{number(value, 2 if abs(value) < 10 else 3)}%"


def loss(value: float) -> str:
    """A loss with four decimals, so that columns align; tiny losses with 3 significant digits."""
    return f"{value:.4f}" if abs(value) >= 0.01 or value == 0 else number(value)


def decimals(value: float, digits: int) -> int:
    """The decimals that show `digits` significant digits of a nonzero `value`; negative left of the point."""
    return digits - 1 - math.floor(math.log10(abs(value)))


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def seeds_text(seeds: Sequence[int]) -> str:
    """'seed 0', 'seeds 0, 1'."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(map(str, seeds))}"


def listed(names: Iterable[str], limit: int = 20) -> str:
    """The names joined by commas; beyond `limit` only their number.

    >>> listed("abc"), listed("abc", limit=2)
    ('a, b, c', 'a, b and 1 more')
    """
    known = [*names]
    more = f" and {len(known) - limit:,} more" if len(known) > limit else ""
    return ", ".join(known[:limit]) + more


def by_likeness(name: str, known: Sequence[str]) -> list[str]:
    """The known names, the most like `name` first."""
    return get_close_matches(name, known, n=len(known) or 1, cutoff=0.0)


def meant(given: str, known: Iterable[str]) -> str | None:
    """The known name that `given` misspells; None if none is near, or two are equally near.

    >>> meant("gtp_tiny", ["gpt_tiny", "gpt_large"]), meant("resnet", ["resnet18", "resnet50"]), meant("x", ["gpt_xl"])
    ('gpt_tiny', None, None)
    """
    word = given.lower()
    likeness = {name: _likeness(word, name.lower()) for name in known}
    nearest = max(likeness.values(), default=0.0)
    found = [name for name, value in likeness.items() if value == nearest]
    return found[0] if nearest >= _MISSPELLED and len(found) == 1 else None


def _likeness(word: str, name: str) -> float:
    """From 0 to 1, which stands for swapped letters too: in a short word they cost difflib's ratio too much."""
    return 1.0 if sorted(word) == sorted(name) else SequenceMatcher(None, word, name).ratio()


def after_guess(guess: str | None, clause: str) -> str:
    """The clause after a question about what was meant, if there is a guess.

    >>> after_guess("adam", "allowed are adam, sgd"), after_guess(None, "allowed are adam, sgd")
    ('did you mean adam? Allowed are adam, sgd', 'allowed are adam, sgd')
    """
    return clause if guess is None else f"did you mean {guess}? {clause[:1].upper()}{clause[1:]}"


def as_sentence(clause: str) -> str:
    """The clause with a full stop, and a capital letter unless it opens with a name.

    >>> as_sentence("the loss is NaN"), as_sentence("aten.bmm overflows")
    ('The loss is NaN.', 'aten.bmm overflows.')
    """
    capital = clause[:1].upper() if clause.split(" ", 1)[0].isalpha() else clause[:1]
    return f"{capital}{clause[1:]}" + ("" if clause.endswith((".", "!", "?")) else ".")


def first_line(text: str, limit: int = 200) -> str:
    """The first line of an error, cut to `limit` characters, without a full stop."""
    line = text.strip().splitlines()[0].strip().removesuffix(".") if text.strip() else ""
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def merge_figures(texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The distinct texts with their positions in `texts`; texts that differ only in measured figures are merged.

    >>> merge_figures(["0.6 of 2 cores busy", "a GPU was hot", "1.0 of 2 cores busy"])
    [('0.6 to 1.0 of 2 cores busy', [0, 2]), ('a GPU was hot', [1])]
    """
    positions: dict[str, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        positions[_FIGURE.sub("0.0", text)].append(index)
    return [(_with_ranges([texts[index] for index in indices]), indices) for indices in positions.values()]


def _with_ranges(texts: Sequence[str]) -> str:
    """The first of texts that differ only in figures, with ranges in place of those."""
    columns = iter(list(zip(*(_FIGURE.findall(text) for text in texts), strict=True)))

    def range_of(_: re.Match[str]) -> str:
        column = next(columns)
        low, high = min(column, key=float), max(column, key=float)
        return low if float(low) == float(high) else f"{low} to {high}"

    return _FIGURE.sub(range_of, texts[0])


def folder_name(text: str) -> str:
    """The text as a folder name that is valid on every system; different texts may give the same name."""
    return re.sub(r"[^A-Za-z0-9_.+=-]", "_", text)[:100].lstrip(".") or "_"


def one_line(error: BaseException) -> str:
    """An error's type and message, with the place in the user's own code that raised it, if any. A ValueError's message
    is a sentence and stands without the type."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)  # its text has the place already
    text = " ".join(message.split())[:300]
    message = text if type(error) is ValueError and text else f"{type(error).__name__}: {text}".rstrip(": ")
    if isinstance(error, SystemExit):
        message = f"ended by sys.exit({error.code!r})"
    place = place_of(error)
    return message if place is None else f"{message} ({place})"


def duration(seconds: float, *, whole: bool = False) -> str:
    """A duration in at most two units; below 10 s with tenths unless `whole`.

    >>> duration(4.24), duration(25.4), duration(75.0), duration(7500.0), duration(200_000.0)
    ('4.2 s', '25 s', '1:15 min', '2:05 h', '2 d 7 h')
    """
    if seconds < 9.95 and not whole:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}:{minutes:02} h" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def escaped(text: str, *, keeps: str = "") -> str:
    r"""Escape the characters that would control a terminal, except those in `keeps`, in a name, a path or an error.

    >>> escaped("a\x1b[31mb\n"), escaped("a\tb\n", keeps="\n\t")
    ('a\\x1b[31mb\\n', 'a\tb\n')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keeps else _shown(character) for character in text)


def _shown(character: str) -> str:
    is_control = unicodedata.category(character) in _CONTROLS or unicodedata.bidirectional(character) in _BIDIRECTIONAL
    return character.encode("unicode_escape").decode("ascii") if is_control else character
