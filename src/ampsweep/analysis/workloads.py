"""Workloads: groups of runs that differ in precision and seed only. Figures are compared only within one."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ampsweep.analysis.runs import Run, Scalar
from ampsweep.config.modes import report_order
from ampsweep.config.schema import NULL

_TITLE_FACTS: Final = ("model", "data", "batch_size", "seq_len", "device_name")
_OF_RANKS: Final = ("parallel", "world_size", "global_batch_size")

DERIVED: Final = ("model_size", "steps", "global_batch_size")
"""Facts that follow from the config; they tell workloads apart if nothing that was swept does."""

_SIZE_KEYS: Final = ("data.batch_size", "data.seq_len", "model.hidden_size")
"""Keys that name a size which several config keys have; else one of the model does."""

Facts = dict[str, Scalar]

_MISSING: Final = object()


@dataclass(frozen=True)
class Workload:
    """Runs that differ in arm and seed only.

    `facts` are those of the identity, and swept config keys that it does not name; `varied` those of them in which this
    workload differs from the others at hand.
    """

    facts: Facts
    varied: Facts
    runs: tuple[Run, ...]

    @property
    def settings(self) -> Facts:
        """The config keys that have one value in all of its runs."""
        first, *others = (run.settings for run in self.runs)
        return {key: value for key, value in first.items() if all(one.get(key, _MISSING) == value for one in others)}

    @property
    def title(self) -> str:
        """The facts that distinguish it from the others, else those that name it."""
        return self.title_of(_TITLE_FACTS)

    def of_arms(self, baseline: str) -> dict[str, list[Run]]:
        """The runs of each arm: the baseline's, then those of the modes in their order, then of the rest by name."""
        arms = sorted({run.arm for run in self.runs}, key=lambda arm: arm_rank(arm, baseline))
        return {arm: [run for run in self.runs if run.arm == arm] for arm in arms}

    def title_of(self, naming: Sequence[str]) -> str:
        of_ranks = () if self.facts.get("parallel") in (None, "single") else _OF_RANKS
        return _in_words(self.varied) or _in_words({key: self.facts.get(key) for key in (*naming, *of_ranks)})


def arm_rank(arm: str, baseline: str) -> tuple[bool, int, str]:
    """Sort key of arms: the baseline, then the modes in their order, then the rest by name."""
    return arm != baseline, *report_order(arm)


def _in_words(facts: Facts) -> str:
    known = {key: value for key, value in facts.items() if value is not None or "." in key}  # a setting may be null
    return ", ".join(f"{key} {NULL if value is None else value}" for key, value in known.items())


def group_workloads(runs: Sequence[Run]) -> list[Workload]:
    """Group `runs` by their facts, and order the groups by them: batch 16 before batch 256.

    Runs with one pair key belong together. A run that ended early may lack facts: it joins the workload that its known
    facts do not contradict.
    """
    pools: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        pools[run.record.pair_key].append(run)
    groups = [
        ({key: (facts | derived)[key] for key in members[0].facts} | swept, members)
        for facts, alike in _merge_compatible(list(pools.values()), derived=False)
        for swept, of_setting in _split_by_settings(alike)
        for derived, joined in _merge_compatible(of_setting, derived=True)
        for members in [[*chain.from_iterable(joined)]]
    ]
    position = {run.directory: index for index, run in enumerate(runs)}
    groups.sort(key=lambda group: [_sort_key(value) for value in group[0].values()])
    varied = _telling(varied_keys([facts for facts, _ in groups]), [facts for facts, _ in groups])
    return [
        Workload(
            facts, {key: facts.get(key) for key in varied}, tuple(sorted(members, key=lambda r: position[r.directory]))
        )
        for facts, members in groups
    ]


def _telling(varied: Sequence[str], groups: Sequence[Facts]) -> list[str]:
    """The keys that tell the groups apart, without the derived ones if possible."""
    chosen = [key for key in varied if key not in DERIVED]
    tells_all = len({tuple(facts.get(key) for key in chosen) for facts in groups}) == len(groups)
    return chosen if tells_all else list(varied)


def _sort_key(value: Scalar) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _merge_compatible(pools: Sequence[list[Run]], *, derived: bool) -> list[tuple[Facts, list[list[Run]]]]:
    """Pools (runs of one pair key) by equal facts, derived or not; those with unknown ones join one that agrees."""
    groups: dict[tuple[Scalar, ...], tuple[Facts, list[list[Run]]]] = {}
    described = [(_known_facts(pool, derived=derived), pool) for pool in pools]
    for facts, pool in sorted(described, key=lambda item: _num_unknown(item[0])):
        key = tuple(facts.values())
        if key not in groups and _num_unknown(facts):
            agreeing = [k for k, (others, _) in groups.items() if _agree(facts, others)]
            key = agreeing[0] if len(agreeing) == 1 else key
        groups.setdefault(key, (facts, []))[1].append(pool)
    return list(groups.values())


def _known_facts(pool: Sequence[Run], *, derived: bool) -> Facts:
    keys = [key for key in pool[0].facts if (key in DERIVED) == derived]
    return {key: next((run.facts[key] for run in pool if run.facts[key] is not None), None) for key in keys}


def _num_unknown(facts: Facts) -> int:
    return sum(value is None for value in facts.values())


def _agree(facts: Facts, others: Facts) -> bool:
    return all(value is None or value == others[key] for key, value in facts.items())


def _split_by_settings(pools: Sequence[list[Run]]) -> list[tuple[Facts, list[list[Run]]]]:
    """Split pools by swept config keys that the identity does not name: those in which pools of one seed differ."""
    by_seed: dict[int, list[Mapping[str, Scalar]]] = defaultdict(list)
    for pool in pools:
        by_seed[pool[0].seed].append(pool[0].settings)
    swept = sorted({key for settings in by_seed.values() for key in varied_keys(settings)}, key=_naming_order)
    naming = _without_followers(swept, [pool[0].settings for pool in pools])
    split: dict[tuple[Scalar, ...], list[list[Run]]] = defaultdict(list)
    for pool in pools:
        split[tuple(pool[0].settings.get(key) for key in naming)].append(pool)
    return [(dict(zip(naming, values, strict=True)), members) for values, members in split.items()]


def _naming_order(key: str) -> tuple[int, bool, str]:
    place = _SIZE_KEYS.index(key) if key in _SIZE_KEYS else len(_SIZE_KEYS)
    return place, not key.startswith("model."), key


def _without_followers(keys: Sequence[str], settings: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Leave out keys that change with an earlier one only, as `${model.hidden_size}` does elsewhere in the config."""
    chosen: list[str] = []
    for key in keys:
        if not any(follows(key, other, settings) for other in chosen):
            chosen = [other for other in chosen if not follows(other, key, settings)] + [key]
    return sorted(chosen)


def follows(key: str, other: str, settings: Iterable[Mapping[str, Scalar]]) -> bool:
    """True if wherever `other` has one value, `key` has one too."""
    found: dict[Scalar, Scalar] = {}
    return all(found.setdefault(one.get(other), one.get(key)) == one.get(key) for one in settings)


def varied_keys(settings: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """The keys that have several values, or none in some of `settings`."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]
