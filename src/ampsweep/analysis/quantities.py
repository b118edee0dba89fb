"""Quantities as text: the same digits and units in the conclusion, the console and the documents."""

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # neither a prediction nor the live display of a training may wait for scipy
    from ampsweep.analysis.statistics import Estimate

_BYTES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_MAX_DECIMALS: Final = 6


def number(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never fewer than its whole part: 6.12, 61.2, 6120, 0.0612.

    >>> number(6.1234), number(6123.4), number(0.000061234), number(0.0)
    ('6.12', '6123', '6.12e-05', '0')
    """
    if value == 0:
        return "0"
    decimals = _decimals(value, digits)
    return f"{value:.{digits - 1}e}" if decimals > _MAX_DECIMALS else f"{value:.{max(decimals, 0)}f}"


def signed(value: float, digits: int = 3) -> str:
    """As `number`, with a plus sign where it is one."""
    return f"+{number(value, digits)}" if value > 0 else number(value, digits)


def milliseconds(value: float) -> str:
    return f"{number(value)} ms"


def ratio(value: float) -> str:
    return f"{number(value)}x"


def num_bytes(value: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> num_bytes(3 * 2**29), num_bytes(2**20), num_bytes(0.0), num_bytes(-2048.0)
    ('1.50 GiB', '1.00 MiB', '0 B', '-2.00 KiB')
    """
    for unit, size in _BYTES:
        if abs(value) >= size:
            return f"{number(value / size)} {unit}"
    return f"{value:.0f} B"


def predicted_bytes(value: float, error_pct: float | None) -> str:
    """What was predicted, with its error where something was measured: '7.17 MiB (+0.11%)'."""
    return num_bytes(value) + ("" if error_pct is None else f" ({error_pct:+.2f}%)")


def percent(value: float) -> str:
    return f"{number(value, 2 if abs(value) < 10 else 3)}%"


def loss(value: float) -> str:
    """A loss with four decimals, so that losses of a table can be read against each other; tiny ones with 3 digits."""
    return f"{value:.4f}" if abs(value) >= 0.01 or value == 0 else number(value)


def estimate(of: "Estimate", *, digits: int = 3, sign: bool = False) -> tuple[str, tuple[str, str] | None]:
    """An estimate's value and the ends of its interval (where it has one), to the same decimals.

    These are `digits` significant digits of the value, or enough for the interval's half width where that is finer. A
    value within its half width of zero takes two digits of the half width.

    >>> from ampsweep.analysis.statistics import Estimate
    >>> estimate(Estimate(value=1.4941, n=3, low=1.4552, high=1.5340))
    ('1.49', ('1.46', '1.53'))
    >>> estimate(Estimate(value=0.00071, n=3, low=-0.0012, high=0.0026), sign=True)
    ('+0.0007', ('-0.0012', '+0.0026'))
    """
    if of.interval is None:
        return (signed if sign else number)(of.value, digits), None
    low, high = of.interval
    half_width = max((high - low) / 2, abs(of.value) * 1e-6)
    near_zero = abs(of.value) <= half_width
    decimals = _decimals(half_width, 2) if near_zero else max(_decimals(of.value, digits), _decimals(half_width, 1))
    plus = "+" if sign else ""
    form = f"{plus}.2e" if decimals > _MAX_DECIMALS else f"{plus}.{max(decimals, 0)}f"
    return f"{of.value:{form}}", (f"{low:{form}}", f"{high:{form}}")


def _decimals(value: float, digits: int) -> int:
    """Decimals that show `digits` significant digits of `value`, which is not zero; negative before the point."""
    return digits - 1 - math.floor(math.log10(abs(value)))


def ratio_figure(of: "Estimate") -> str:
    """A ratio with its interval: '1.49x [1.46, 1.53]'; where that says little, with two digits each."""
    value, ends = estimate(of)
    if of.interval is not None and of.interval[1] > 2 * of.interval[0]:
        value, ends = number(of.value, 2), (number(of.interval[0], 2), number(of.interval[1], 2))
    return f"{value}x" if ends is None else f"{value}x [{ends[0]}, {ends[1]}]"


def plural(count: int, noun: str) -> str:
    """'1 run', '2 runs'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def first_line(text: str, limit: int = 200) -> str:
    """The first line of an error, cut to `limit` characters, without its final stop."""
    line = text.strip().splitlines()[0].strip().removesuffix(".") if text.strip() else ""
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
