"""Workloads: groups of runs that differ in precision and seed only. Figures are compared only within one."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.runs import Run, Scalar

_TITLE_FACTS: Final = ("model", "data", "batch_size", "seq_len", "device_name")

Facts = dict[str, Scalar]


@dataclass(frozen=True)
class Workload:
    """Runs that differ in arm and seed only.

    `facts` are those of the identity, and swept config keys that the identity does not name; `varied` those of them
    in which this workload differs from the others at hand.
    """

    facts: Facts
    varied: Facts
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """The facts that distinguish it from the others; if it is the only one, or knows none, those that name it."""
        return self.title_of(_TITLE_FACTS)

    def title_of(self, naming: Sequence[str]) -> str:
        """The title, with the keys of the facts that name a workload where none distinguishes it."""
        return _in_words(self.varied) or _in_words({key: self.facts.get(key) for key in naming})


def _in_words(facts: Facts) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value is not None)


def group_workloads(runs: Sequence[Run]) -> list[Workload]:
    """Group `runs` by their facts, and order the groups by them: batch 16 before batch 256, whichever ran first.

    Runs with one pair key belong together. A run that ended early may lack facts (a refused precision never built its
    model): it joins the workload that its known facts do not contradict.
    """
    pools: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        pools[run.record.pair_key].append(run)
    groups = [
        (facts | swept, members)
        for facts, pool_group in _merge_compatible(pools.values())
        for swept, members in _split_by_settings(pool_group)
    ]
    position = {run.directory: index for index, run in enumerate(runs)}
    groups.sort(key=lambda group: [_sort_key(value) for value in group[0].values()])
    varied = _varied_keys([facts for facts, _ in groups])
    return [
        Workload(
            facts, {key: facts.get(key) for key in varied}, tuple(sorted(members, key=lambda r: position[r.directory]))
        )
        for facts, members in groups
    ]


def _sort_key(value: Scalar) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _merge_compatible(pools: Iterable[list[Run]]) -> list[tuple[Facts, list[list[Run]]]]:
    """Pools (runs of one pair key) by equal facts; pools with unknown facts join the one group that agrees."""
    groups: dict[tuple[Scalar, ...], tuple[Facts, list[list[Run]]]] = {}
    described = [(_known_facts(pool), pool) for pool in pools]
    for facts, pool in sorted(described, key=lambda item: _num_unknown(item[0])):
        key = tuple(facts.values())
        if key not in groups and _num_unknown(facts):
            agreeing = [k for k, (others, _) in groups.items() if _agree(facts, others)]
            key = agreeing[0] if len(agreeing) == 1 else key
        groups.setdefault(key, (facts, []))[1].append(pool)
    return list(groups.values())


def _known_facts(pool: Sequence[Run]) -> Facts:
    return {key: next((run.facts[key] for run in pool if run.facts[key] is not None), None) for key in pool[0].facts}


def _num_unknown(facts: Facts) -> int:
    return sum(value is None for value in facts.values())


def _agree(facts: Facts, others: Facts) -> bool:
    return all(value is None or value == others[key] for key, value in facts.items())


def _split_by_settings(pools: Sequence[list[Run]]) -> list[tuple[Facts, list[Run]]]:
    """Split pools by config keys that were swept although the identity does not name them (a weight decay, say).

    Two pools of one seed differ in more than the seed; the config keys in which they do are what was swept.
    """
    by_seed: dict[int, list[Mapping[str, Scalar]]] = defaultdict(list)
    for pool in pools:
        by_seed[pool[0].seed].append(pool[0].settings)
    swept = sorted({key for settings in by_seed.values() for key in _varied_keys(settings)})
    split: dict[tuple[Scalar, ...], list[Run]] = defaultdict(list)
    for pool in pools:
        split[tuple(pool[0].settings.get(key) for key in swept)].extend(pool)
    return [(dict(zip(swept, values, strict=True)), members) for values, members in split.items()]


def _varied_keys(settings: Sequence[Mapping[str, Scalar]]) -> list[str]:
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]
