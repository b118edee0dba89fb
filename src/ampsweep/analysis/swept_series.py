"""Series of workloads that differ in one swept key: a number (batch size) or a word (strategy)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ampsweep.analysis.runs import Scalar
from ampsweep.analysis.workloads import DERIVED, Facts, Workload, follows, varied_keys

_NOT_SWEPT: Final = frozenset({"experiment", "model", "task", "data", "device", "device_name", *DERIVED})
"""Facts that name a training and its device, or follow from others."""
_STRATEGIES: Final = ("single", "ddp", "fsdp2")
_NAMES: Final = {
    "batch_size": "batch size",
    "seq_len": "sequence length",
    "grad_accum_steps": "micro-batches a step",
    "world_size": "number of ranks",
    "parallel": "strategy",
}


@dataclass(frozen=True, kw_only=True)
class Series:
    key: str  # a fact of the identity, or a config key
    values: tuple[Scalar, ...]  # ascending; words in their usual order
    workloads: tuple[int, ...]  # their positions in the comparison
    facts: Facts
    varied: Facts  # facts that distinguish the series of the same key
    along: tuple[str, ...]  # config keys, and the number of ranks, that vary with the key but have other values

    @cached_property
    def in_words(self) -> bool:
        return not all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def name(self) -> str:
        return _NAMES.get(self.key, self.key)

    @property
    def heading(self) -> str:
        facts = ", ".join(f"{key} {value}" for key, value in self.varied.items() if value is not None)
        kind = f"Each {self.name} beside the others" if self.in_words else f"Against {self.name}"
        return kind + (f" ({facts})" if facts else "")

    @property
    def lines(self) -> list[str]:
        verb = "changes" if len(self.along) == 1 else "change"
        return [f"With {self.name} {', '.join(self.along)} {verb}, too"] if self.along else []


def value_text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def swept_series(workloads: Sequence[Workload]) -> tuple[Series, ...]:
    """Find the series of at least two workloads; a workload is in a series per swept key."""
    found = []
    for key in dict.fromkeys(key for workload in workloads for key in workload.facts if key not in _NOT_SWEPT):
        series = [*_series_of(key, workloads)]
        varied = varied_keys([member.facts for member in series])
        found += [replace(member, varied={name: member.facts.get(name) for name in varied}) for member in series]
    return tuple(found)


def _series_of(key: str, workloads: Sequence[Workload]) -> Iterator[Series]:
    # Where each strategy has its own number of ranks, the two change together.
    is_alone = key == "parallel" and follows("world_size", key, [workload.facts for workload in workloads])
    with_it = ("world_size",) if is_alone else ()
    beside = (key, *DERIVED, *with_it)
    groups: dict[object, list[int]] = defaultdict(list)
    for place, workload in enumerate(workloads):
        if workload.facts.get(key) is not None:
            groups[tuple((name, value) for name, value in workload.facts.items() if name not in beside)].append(place)
    for places in groups.values():
        there = sorted(places, key=lambda place: _order(workloads[place].facts[key]))
        found = [workloads[place] for place in there]
        values = tuple(workload.facts[key] for workload in found)
        settings = [workload.settings | {name: workload.facts.get(name) for name in with_it} for workload in found]
        if 1 < len(values) == len(set(values)):
            yield Series(
                key=key,
                values=values,
                workloads=tuple(there),
                facts={name: value for name, value in found[0].facts.items() if name not in beside},
                varied={},
                along=_along(key, values, settings),
            )


def _order(value: Scalar) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 0, value, ""
    return 1, _STRATEGIES.index(value) if value in _STRATEGIES else len(_STRATEGIES), str(value)


def _along(key: str, values: Sequence[Scalar], found: Sequence[Facts]) -> tuple[str, ...]:
    varied = [name for name in varied_keys(found) if not name.startswith(f"{key}.")]
    return tuple(name for name in varied if [facts.get(name) for facts in found] != list(values))
