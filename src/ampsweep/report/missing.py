"""What a comparison had to do without, in sentences; files with the same trouble in one."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.omissions import Omission

_MAX_PATHS: Final = 3


def missing(omissions: Sequence[Omission]) -> list[str]:
    """A sentence, without its stop, for each trouble: the files (the first three of many), the reason, what follows."""
    paths: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in omissions:
        paths[one.reason, one.consequence].append(one.path)
    return [f"{_named(of)} {reason}; {consequence}" for (reason, consequence), of in paths.items()]


def _named(paths: Sequence[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
    return f"{', '.join(paths[:_MAX_PATHS])}{more}: each"
