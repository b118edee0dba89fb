"""Workloads: groups of runs that differ in precision and seed only; figures are compared within a group."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ampsweep.analysis.runs import Run, Scalar
from ampsweep.config.field_rules import NULL
from ampsweep.config.modes import report_order

_TITLE_FACTS: Final = ("model", "data", "batch_size", "seq_len", "device_name")
_OF_RANKS: Final = ("parallel", "world_size", "global_batch_size")

DERIVED: Final = ("model_size", "steps", "global_batch_size")
"""Facts that follow from the config; they distinguish workloads only if nothing swept does."""

_SIZE_KEYS: Final = ("data.batch_size", "data.seq_len", "model.hidden_size")
"""Preferred names of a size that several config keys have; then keys of the model."""

Facts = dict[str, Scalar]


@dataclass(frozen=True)
class Workload:
    """Runs that differ in arm and seed only; `varied`: the facts that differ between the workloads at hand."""

    facts: Facts
    varied: Facts
    runs: tuple[Run, ...]

    @property
    def settings(self) -> Facts:
        first, *rest = (run.settings.items() for run in self.runs)
        return dict(item for item in first if all(item in other for other in rest))

    @property
    def title(self) -> str:
        """The facts that distinguish it from other workloads, else those that name it."""
        of_ranks = () if self.facts.get("parallel") in (None, "single") else _OF_RANKS
        named = _in_words(self.varied) or _in_words({key: self.facts.get(key) for key in (*_TITLE_FACTS, *of_ranks)})
        return named or str(self.facts.get("experiment", ""))

    def of_arms(self, baseline: str) -> dict[str, list[Run]]:
        arms = sorted({run.arm for run in self.runs}, key=lambda arm: arm_rank(arm, baseline))
        return {arm: [run for run in self.runs if run.arm == arm] for arm in arms}


def arm_rank(arm: str, baseline: str) -> tuple[bool, int, str]:
    """Sort key of arms: the baseline, modes in their order, the rest by name."""
    return arm != baseline, *report_order(arm)


def _in_words(facts: Facts) -> str:
    known = {key: value for key, value in facts.items() if value is not None or "." in key}  # a setting may be null
    return ", ".join(f"{key} {NULL if value is None else value}" for key, value in known.items())


def group_workloads(runs: Sequence[Run]) -> list[Workload]:
    """Group `runs` by their facts, and sort the groups by them: batch 16 before batch 256. Runs with the same pair key
    stay together. A run that ended early may lack facts: it joins the only workload that its known facts agree with."""
    pools: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        pools[run.recorded_key].append(run)
    position = {run.directory: index for index, run in enumerate(runs)}
    groups = [
        ({key: (facts | derived)[key] for key in members[0].facts} | swept, members)
        for facts, alike in _merge_compatible(list(pools.values()), derived=False)
        for swept, of_setting in _split_by_settings(alike)
        for derived, joined in _merge_compatible(of_setting, derived=True)
        for members in [sorted(chain.from_iterable(joined), key=lambda run: position[run.directory])]
    ]
    groups.sort(key=lambda group: [_sort_key(value) for value in group[0].values()])
    varied = _distinguishing(varied_keys([facts for facts, _ in groups]), [facts for facts, _ in groups])
    return [Workload(facts, {key: facts.get(key) for key in varied}, tuple(members)) for facts, members in groups]


def _distinguishing(varied: Sequence[str], groups: Sequence[Facts]) -> list[str]:
    chosen = [key for key in varied if key not in DERIVED]
    is_enough = len({tuple(facts.get(key) for key in chosen) for facts in groups}) == len(groups)
    return chosen if is_enough else list(varied)


def _sort_key(value: Scalar) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _merge_compatible(pools: Sequence[list[Run]], *, derived: bool) -> list[tuple[Facts, list[list[Run]]]]:
    """Group pools (runs of a pair key) by equal facts, derived or not; a pool with unknown facts joins if it agrees."""
    groups: dict[tuple[Scalar, ...], tuple[Facts, list[list[Run]]]] = {}
    described = [(_known_facts(pool, derived=derived), pool) for pool in pools]
    for facts, pool in sorted(described, key=lambda item: _num_unknown(item[0])):
        key = tuple(facts.values())
        if key not in groups and _num_unknown(facts):
            agreeing = [k for k, (known, _) in groups.items() if all(v in (None, known[n]) for n, v in facts.items())]
            key = agreeing[0] if len(agreeing) == 1 else key
        groups.setdefault(key, (facts, []))[1].append(pool)
    return list(groups.values())


def _known_facts(pool: Sequence[Run], *, derived: bool) -> Facts:
    keys = [key for key in pool[0].facts if (key in DERIVED) == derived]
    return {key: next((run.facts[key] for run in pool if run.facts[key] is not None), None) for key in keys}


def _num_unknown(facts: Facts) -> int:
    return sum(value is None for value in facts.values())


def _split_by_settings(pools: Sequence[list[Run]]) -> list[tuple[Facts, list[list[Run]]]]:
    """Split pools by swept config keys outside the identity: those in which pools of the same seed differ."""
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
    """Drop keys that only change with an earlier key, such as copies of `${model.hidden_size}`."""
    chosen: list[str] = []
    for key in keys:
        if not any(follows(key, other, settings) for other in chosen):
            chosen = [other for other in chosen if not follows(other, key, settings)] + [key]
    return sorted(chosen)


def follows(key: str, other: str, settings: Iterable[Mapping[str, Scalar]]) -> bool:
    """Return True if `key` has a single value wherever `other` has."""
    found: dict[Scalar, Scalar] = {}
    return all(found.setdefault(known.get(other), known.get(key)) == known.get(key) for known in settings)


def varied_keys(settings: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Keys with several values, or missing in some of `settings`."""
    keys = dict.fromkeys(key for known in settings for key in known)
    return [key for key in keys if len({known.get(key) for known in settings}) > 1]
