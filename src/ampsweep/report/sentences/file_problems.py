"""Problems of files and runs in words: the data that a comparison lacks, and the consequences."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.comparison import FileProblem
from ampsweep.text import num_bytes

_MAX_PATHS: Final = 3
_OF_FILES: Final = {
    "not readable": "left out",
    "no history": "no curves, no time to a loss",
    "changed history": "no curves, no time to a loss",
    "damaged history": "its curves are of what is left, no time to a loss",
    "not finite": "gaps in its curves",
}
CONSEQUENCES: Final = {
    "not readable": _OF_FILES["not readable"],
    "oom": "no figures",
    "diverged": "no figures",
    "unsupported": "not run",
    "interrupted": "no figures",
    "failed": "no figures",
    "cut short": "its loss does not count",
    "disproved": "none of its figures count",
    "contaminated": "its speed does not count",
    "leaks": "its memory may grow beyond the peak told here",
    "not paired": "compared with nothing",
    **_OF_FILES,
}
"""Problems of a run or file, worst first but for what the run cannot help, and what follows from each."""


def file_problems(problems: Sequence[FileProblem]) -> list[str]:
    """A sentence, without its stop, for each problem: the files (the first three of many), the reason, what follows."""
    paths: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in problems:
        paths[one.reason, CONSEQUENCES[one.kind]].append(one.path)
    return [f"{_named(of)} {reason}; {consequence}" for (reason, consequence), of in paths.items()]


def _named(paths: Sequence[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
    return f"{', '.join(paths[:_MAX_PATHS])}{more}: each"


def leak(num_leaked: int) -> str:
    """A step that leaves memory behind, in a clause."""
    return f"a step left {num_bytes(num_leaked)} behind"
