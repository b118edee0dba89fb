"""Cores of the processor as Linux counts them (logical ones): how they are written, and which share a physical core."""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final

_CPUS: Final = Path("/sys/devices/system/cpu")


def parse_cores(text: str) -> frozenset[int]:
    """The cores 0 to 3 and 8 of `0-3+8`, or of `0-3,8` as Linux writes it.

    Raises:
        ValueError: a part of the text is no number or span.
    """
    spans = (part.partition("-") for part in text.replace(",", "+").split("+"))
    return frozenset(core for first, _, last in spans for core in range(int(first), int(last or first) + 1))


def written_cores(cores: Collection[int]) -> str:
    """The text of `parse_cores` for these cores: `0-3+8`."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and core == spans[-1][-1] + 1:
            spans[-1][1:] = [core]
        else:
            spans.append([core])
    return "+".join("-".join(map(str, span)) for span in spans)


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


def num_physical(cores: Collection[int]) -> int:
    """Number of physical cores that these are threads of."""
    return len({siblings(core) for core in cores})
