"""The extent of a document on a large comparison: what it leaves out is counted there, and is in `comparison.json`."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

from ampsweep.report.workload_data import WorkloadData

JSON_NAME: Final = "comparison.json"
"""The file that has everything."""
MAX_POINTS: Final = 300
"""Most points of a curve on a page of a few runs: about one for two or three pixels."""
_ALL_POINTS: Final = 165_000
_MIN_POINTS: Final = 25
"""Points of all curves together, about 3 MB of a page; and the least that a curve is thinned to."""
_ALL_CURVES: Final = 10_000
"""Curves of single runs on a page; of more runs some seeds have theirs, and the bands are of all."""
_MAX_SEEDS: Final = 200
"""Seeds to choose from on a page that does not have all of them."""
_ALL_DOTS: Final = 4_000
_MAX_DOTS: Final = 400
_MIN_DOTS: Final = 8
"""Dots of all arms in one panel of a page that does not have all seeds; the most and the least of one arm."""
_MAX_ARMS: Final = 300
"""Arms of the workloads that are drawn, all workloads together."""
MAX_ROWS: Final = 2_000
"""Rows of a table of runs."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Extent:
    """The part of its runs that a page draws; up to some thousand runs it draws all."""

    max_points: int = MAX_POINTS
    """Most points of a curve."""
    seeds: frozenset[int] | None = None
    """The seeds that can be chosen, of which single runs are drawn; None: all of them."""
    max_dots: int | None = None
    """Most dots of an arm, beside those of `seeds`; None: one for every run."""
    num_workloads: int | None = None
    """The number of workloads, from the first, that have panels; None: all."""

    def has(self, seed: int) -> bool:
        """True if the seed can be chosen."""
        return self.seeds is None or seed in self.seeds

    def dots(self, values: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """The values (seed, value) to draw: at even steps of their order, the lowest and highest among them."""
        if self.max_dots is None or len(values) <= self.max_dots:
            return [*values]
        order = sorted(range(len(values)), key=lambda place: values[place][1])
        steps = self.max_dots - 1
        kept = {order[step * (len(values) - 1) // steps] for step in range(self.max_dots)}
        return [value for place, value in enumerate(values) if place in kept or self.has(value[0])]


def extent_of(workloads: Sequence[WorkloadData], num_metrics: int) -> Extent:
    """The extent of a page of these workloads, with curves of `num_metrics` metrics."""
    ends = list(accumulate(len(data.names) for data in workloads))
    num_drawn = max(sum(end <= _MAX_ARMS for end in ends), 1)
    drawn = workloads[:num_drawn]
    num_workloads = num_drawn if num_drawn < len(workloads) else None
    num_curves = sum(len(data.runs) for data in drawn) * num_metrics
    if num_curves <= _ALL_CURVES:
        return Extent(_points(num_curves), num_workloads=num_workloads)
    num_arms = sum(len(data.names) for data in drawn)
    num_seeds = min(_ALL_CURVES // max(num_arms * num_metrics, 1), _MAX_SEEDS)
    seeds = sorted({run.seed for data in drawn for run in data.runs})[:num_seeds]
    return Extent(
        _points(num_arms * num_metrics * (len(seeds) + 3)),  # a band is three curves
        frozenset(seeds),
        min(max(_ALL_DOTS // num_arms, _MIN_DOTS), _MAX_DOTS),
        num_workloads,
    )


def _points(num_curves: int) -> int:
    return max(_MIN_POINTS, min(MAX_POINTS, _ALL_POINTS // max(num_curves, 1)))


def first_rows(items: Sequence[Item], group: Callable[[Item], Hashable], room: int = MAX_ROWS) -> list[Item]:
    """The items that a table with room for `room` rows shows: the first ones of each group, equally many, or all."""
    seen: Counter[Hashable] = Counter()
    places_in_group = []
    for item in items:
        key = group(item)
        places_in_group.append(seen[key])
        seen[key] += 1
    first = sorted(range(len(items)), key=places_in_group.__getitem__)[:room]
    return [items[place] for place in sorted(first)]
