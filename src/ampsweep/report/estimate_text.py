"""Estimates as text: a value with its interval, to the same decimals."""

from ampsweep.analysis.statistics import Estimate
from ampsweep.text import MAX_DECIMALS, decimals, number, signed


def estimate(of: Estimate, *, digits: int = 3, sign: bool = False) -> tuple[str, tuple[str, str] | None]:
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
    places = decimals(half_width, 2) if near_zero else max(decimals(of.value, digits), decimals(half_width, 1))
    plus = "+" if sign else ""
    form = f"{plus}.2e" if places > MAX_DECIMALS else f"{plus}.{max(places, 0)}f"
    return f"{of.value:{form}}", (f"{low:{form}}", f"{high:{form}}")


def ratio_estimate(of: Estimate) -> tuple[str, tuple[str, str] | None]:
    """As `estimate`, of a ratio: where its interval says little, each of the three with two digits of its own."""
    if of.interval is not None and of.interval[1] > 2 * of.interval[0]:
        return number(of.value, 2), (number(of.interval[0], 2), number(of.interval[1], 2))
    return estimate(of)


def ratio_figure(of: Estimate) -> str:
    """A ratio with its interval: '1.49x [1.46, 1.53]'."""
    value, ends = ratio_estimate(of)
    return f"{value}x" if ends is None else f"{value}x [{ends[0]}, {ends[1]}]"
