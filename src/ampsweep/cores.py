"""Cores of the processor as Linux counts them (logical ones), and which of them share a physical core."""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final

_CPUS: Final = Path("/sys/devices/system/cpu")


def parse_cores(text: str) -> frozenset[int]:
    """The cores 0 to 3 and 8 of `0-3,8`, as Linux writes it.

    Raises:
        ValueError: a part of the text is no number or span.
    """
    spans = (part.partition("-") for part in text.split(","))
    return frozenset(core for first, _, last in spans for core in range(int(first), int(last or first) + 1))


@cache
def siblings(core: int) -> frozenset[int]:
    """The cores that are hardware threads of the same physical core, this one included; it alone if nothing tells."""
    # https://docs.kernel.org/admin-guide/cputopology.html; before Linux 5.0 by its second name
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return parse_cores((_CPUS / f"cpu{core}" / "topology" / name).read_text(encoding="ascii")) | {core}
        except (OSError, ValueError):
            continue
    return frozenset({core})


def with_siblings(cores: Collection[int]) -> frozenset[int]:
    """These cores and all that share a physical core with one of them."""
    return frozenset().union(*map(siblings, cores))
