"""Causes that several runs recorded, those that differ in what was measured only as one."""

from collections.abc import Iterable
from dataclasses import dataclass

from ampsweep.text import merge_figures


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause with the seeds of its runs. Figures in which the runs' texts differ are ranges: '0.6 to 1.0 cores'."""

    text: str
    num_runs: int
    seeds: tuple[int, ...]


def causes(recorded: Iterable[tuple[int, str]]) -> tuple[Cause, ...]:
    """The causes of runs, given as (seed, text): the one of most runs first, else in the order of the runs."""
    runs = list(recorded)
    found = [
        Cause(text=text, num_runs=len(which), seeds=tuple(sorted({runs[index][0] for index in which})))
        for text, which in merge_figures([text for _, text in runs])
    ]
    return tuple(sorted(found, key=lambda cause: -cause.num_runs))
