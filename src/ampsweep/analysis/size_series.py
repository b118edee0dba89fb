"""Series of workloads that differ in one size of the model or its batches, and what multiples of 8 gain there."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeGuard

from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.reasons import MULTIPLE
from ampsweep.analysis.runs import STEP_MS, Run, Scalar
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, geometric_mean, mean_ratio
from ampsweep.analysis.step_limits import small_step
from ampsweep.analysis.workloads import DERIVED, Facts, Workload

_NAMED_SIZES: Final = {
    "batch_size": "data.batch_size",
    "seq_len": "data.seq_len",
    "grad_accum_steps": "trainer.grad_accum_steps",
}
"""Facts of the identity that are sizes, and their config keys."""
_GROUPS: Final = ("model.", "data.", "task.")
"""Other sizes are swept config keys of these groups."""
MAX_NEIGHBOUR_DISTANCE: Final = 0.05
"""Share of a multiple of 8 by which a size compared with it may differ: their arithmetic is then about the same."""

Undecided = Literal["too small", "too few seeds", "no figures", "not resolved"]


@dataclass(frozen=True, kw_only=True)
class MultipleEffect:
    """An arm's speedup at a size that is no multiple of 8, over its speedup at the nearest one that is."""

    arm: str
    size: float
    multiple: float
    ratio: Estimate | None
    """Over seeds: each has a speedup at both sizes. None where no seed has."""
    undecided: Undecided | None
    """The reason why it decides nothing: a step limited by launching operators at either size, fewer than three seeds,
    or an interval that holds 1; None where the ratio is decided."""

    @property
    def num_seeds(self) -> int:
        """Seeds with a speedup at both sizes."""
        return 0 if self.ratio is None else self.ratio.n


@dataclass(frozen=True, kw_only=True)
class SizeSeries:
    """Workloads that differ in one size only, from the smallest, with what tells this series from others."""

    key: str
    """The fact that varies: of the identity, or a config key."""
    config_key: str
    facts: Facts
    """The facts that its workloads share."""
    varied: Facts
    """Those in which other series of the same size differ."""
    sizes: tuple[float, ...]
    workloads: tuple[int, ...]
    """The places of their workloads among those of the comparison."""
    too_small: tuple[float, ...]
    """Sizes at which the baseline's step is too small to judge speed by."""
    along: tuple[str, ...]
    """Numeric config keys that change with the size, to other values than it has."""
    effects: tuple[MultipleEffect, ...]


def is_multiple(size: float) -> bool:
    """True for whole multiples of 8, which tensor cores multiply at full rate."""
    return size % MULTIPLE == 0


def size_series(workloads: Sequence[Workload], pairs: Sequence[Pair], baseline: str) -> tuple[SizeSeries, ...]:
    """The series of two sizes or more among `workloads`; a workload is in one for each size that was varied."""
    settings = [one.settings for one in workloads]
    return tuple(
        one
        for key in _sizes_in(workloads)
        for one in _told_apart(list(_of_size(key, workloads, settings, pairs, baseline)))
    )


def _sizes_in(workloads: Sequence[Workload]) -> list[str]:
    """Facts that are sizes and vary."""
    keys = dict.fromkeys(key for one in workloads for key in one.facts)
    sizes = [key for key in keys if key in _NAMED_SIZES or key.startswith(_GROUPS)]
    return [key for key in sizes if len({size for one in workloads if _is_number(size := one.facts.get(key))}) > 1]


def _of_size(
    key: str, workloads: Sequence[Workload], settings: Sequence[Facts], pairs: Sequence[Pair], baseline: str
) -> Iterator[SizeSeries]:
    groups: dict[object, list[tuple[float, int]]] = defaultdict(list)
    for place, one in enumerate(workloads):
        size = one.facts.get(key)
        if _is_number(size):
            groups[tuple(_shared(one, key).items()), _words(settings[place])].append((size, place))
    for members in groups.values():
        members.sort()
        sizes, places = zip(*members, strict=True)
        if 1 < len(sizes) == len(set(sizes)):
            yield SizeSeries(
                key=key,
                config_key=_NAMED_SIZES.get(key, key),
                facts=_shared(workloads[places[0]], key),
                varied={},
                sizes=sizes,
                workloads=places,
                too_small=tuple(
                    size for size, place in members if small_step(_runs_of(baseline, workloads[place])) is not None
                ),
                along=_along(sizes, [settings[place] for place in places]),
                effects=tuple(_effects(sizes, [workloads[place] for place in places], pairs, baseline)),
            )


def _shared(workload: Workload, key: str) -> Facts:
    return {name: value for name, value in workload.facts.items() if name != key and name not in DERIVED}


def _words(settings: Facts) -> tuple[tuple[str, Scalar], ...]:
    """The settings that no number tells: classes, names, switches. In these a series does not vary."""
    return tuple((key, value) for key, value in settings.items() if not _is_number(value))


def _along(sizes: Sequence[float], settings: Sequence[Facts]) -> tuple[str, ...]:
    values = {key: [one.get(key) for one in settings] for key in dict.fromkeys(key for one in settings for key in one)}
    return tuple(key for key, found in values.items() if len(set(found)) > 1 and found != list(sizes))


def _told_apart(series: Sequence[SizeSeries]) -> list[SizeSeries]:
    keys = dict.fromkeys(key for one in series for key in one.facts)
    varied = [key for key in keys if len({one.facts.get(key) for one in series}) > 1]
    return [replace(one, varied={key: one.facts.get(key) for key in varied}) for one in series]


def _effects(
    sizes: Sequence[float], workloads: Sequence[Workload], pairs: Sequence[Pair], baseline: str
) -> Iterator[MultipleEffect]:
    multiples = [size for size in sizes if is_multiple(size)]
    of_size = dict(zip(sizes, workloads, strict=True))
    arms = dict.fromkeys(run.arm for one in workloads for run in one.runs if run.arm != baseline and run.measured)
    for size in sizes:
        near = [one for one in multiples if abs(one - size) <= MAX_NEIGHBOUR_DISTANCE * one]
        if near and not is_multiple(size):
            multiple = min(near, key=lambda one: abs(one - size))
            for arm in arms:
                both = [_SpeedupThere(arm, of_size[one], pairs, baseline) for one in (size, multiple)]
                yield _effect(arm, size, multiple, both)


class _SpeedupThere:
    """An arm's speedup at one size, by seed, and the sign that its step or the baseline's is too small to tell."""

    def __init__(self, arm: str, workload: Workload, pairs: Sequence[Pair], baseline: str) -> None:
        keys = {run.pair_key for run in workload.runs}
        found: dict[int, list[float]] = defaultdict(list)
        for pair in pairs:
            times = pair.speed_figures(STEP_MS) if pair.arm == arm and pair.pair_key in keys else None
            if times is not None and min(times) > 0:
                found[pair.arm_runs[0].seed].append(times[0] / times[1])
        self.by_seed = {seed: mean for seed, ratios in found.items() if (mean := geometric_mean(ratios)) is not None}
        self.too_small = any(small_step(_runs_of(one, workload)) is not None for one in (arm, baseline))


def _effect(arm: str, size: float, multiple: float, there: Sequence[_SpeedupThere]) -> MultipleEffect:
    here, beside = there
    seeds = sorted(here.by_seed.keys() & beside.by_seed.keys())
    ratio = mean_ratio([(here.by_seed[seed], beside.by_seed[seed]) for seed in seeds]) if seeds else None
    undecided: Undecided | None = None
    if ratio is None:
        undecided = "no figures"
    elif any(one.too_small for one in there):
        undecided = "too small"
    elif ratio.n < MIN_PAIRS:
        undecided = "too few seeds"
    elif not ratio.resolves(1.0):
        undecided = "not resolved"
    return MultipleEffect(arm=arm, size=size, multiple=multiple, ratio=ratio, undecided=undecided)


def _runs_of(arm: str, workload: Workload) -> list[Run]:
    return [run for run in workload.runs if run.arm == arm]


def _is_number(value: Scalar) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
