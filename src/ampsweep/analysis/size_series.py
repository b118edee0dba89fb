"""Series of workloads that differ in one key: a size of the model or its batches, and what multiples of 8 gain there;
or the strategy of several processes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeGuard

from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.reasons import MULTIPLE
from ampsweep.analysis.runs import STEP_MS, Run, Scalar
from ampsweep.analysis.size_steps import Size, SizeStep, size_steps
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, geometric_mean, mean_ratio
from ampsweep.analysis.step_limits import small_step
from ampsweep.analysis.workloads import DERIVED, Facts, Workload, follows

_NAMED_SIZES: Final = {
    "batch_size": "data.batch_size",
    "seq_len": "data.seq_len",
    "grad_accum_steps": "trainer.grad_accum_steps",
    "world_size": "parallel.num_processes",
}
"""Facts of the identity that are sizes, and their config keys."""
_COUNTS: Final = ("grad_accum_steps", "world_size")
"""Sizes of no tensor, whose multiples of 8 are like any other."""
_GROUPS: Final = ("model.", "data.", "task.", "parallel.")
"""Other sizes are swept config keys of these groups."""
STRATEGY: Final = "parallel"
"""The fact that is no number and yet varied as a size is."""
_STRATEGIES: Final = ("single", "ddp", "fsdp2")
MAX_NEIGHBOUR_DISTANCE: Final = 0.05
"""Share of a multiple of 8 by which a size compared with it may differ: their arithmetic is then about the same."""

Pairs = Mapping[str, Sequence[Pair]]
"""Pair key -> its pairs."""

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
    sizes: tuple[Size, ...]
    """From the smallest; words in their usual order."""
    workloads: tuple[int, ...]
    """The places of their workloads among those of the comparison."""
    too_small: tuple[Size, ...]
    """Sizes at which the baseline's step is too small to judge speed by."""
    along: tuple[str, ...]
    """Numeric config keys, and the number of ranks, that change with the size, to other values than it has."""
    effects: tuple[MultipleEffect, ...]
    steps: tuple[SizeStep, ...] = ()
    """Each arm at each word against the first one; none where the sizes are numbers."""

    @property
    def in_words(self) -> bool:
        """True if what varies is no number."""
        return any(isinstance(size, str) for size in self.sizes)

    @property
    def of_tensors(self) -> bool:
        """True if what varies is a size of tensors, of which multiples of 8 are special."""
        return not self.in_words and self.key not in _COUNTS


def is_multiple(size: Size) -> bool:
    """True for whole multiples of 8, which tensor cores multiply at full rate."""
    return not isinstance(size, str) and size % MULTIPLE == 0


def size_series(workloads: Sequence[Workload], pairs: Sequence[Pair], baseline: str) -> tuple[SizeSeries, ...]:
    """The series of two sizes or more among `workloads`; a workload is in one for each size that was varied."""
    settings = [one.settings for one in workloads]
    by_key: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_key[pair.pair_key].append(pair)
    return tuple(
        one
        for key in _sizes_in(workloads)
        for one in _told_apart(list(_of_size(key, workloads, settings, by_key, baseline)))
    )


def _sizes_in(workloads: Sequence[Workload]) -> list[str]:
    """Facts that are sizes and vary, and the strategy or a setting of it where that does."""
    keys = dict.fromkeys(key for one in workloads for key in one.facts)
    sizes = [key for key in keys if key in _NAMED_SIZES or key == STRATEGY or key.startswith(_GROUPS)]
    return [key for key in sizes if len({size for one in workloads if (size := _size(key, one)) is not None}) > 1]


def _size(key: str, workload: Workload) -> Size | None:
    """The workload's value of a key, if a series can be over it."""
    value = workload.facts.get(key)
    if _is_number(value):
        return value
    if value is None or not (key == STRATEGY or key.startswith(f"{STRATEGY}.")):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size_order(size: Size) -> tuple[float, str]:
    if isinstance(size, str):
        return _STRATEGIES.index(size) if size in _STRATEGIES else len(_STRATEGIES), size
    return size, ""


def _of_size(
    key: str, workloads: Sequence[Workload], settings: Sequence[Facts], pairs: Pairs, baseline: str
) -> Iterator[SizeSeries]:
    groups: dict[object, list[tuple[Size, int]]] = defaultdict(list)
    config_key = f"{STRATEGY}.strategy" if key == STRATEGY else _NAMED_SIZES.get(key, key)
    beside = _changing_with(key, workloads)
    for place, one in enumerate(workloads):
        if (size := _size(key, one)) is not None:
            shared = _shared(one, (key, *beside))
            groups[tuple(shared.items()), _words(settings[place], config_key)].append((size, place))
    for members in groups.values():
        members.sort(key=lambda member: (_size_order(member[0]), member[1]))
        sizes, places = zip(*members, strict=True)
        if 1 < len(sizes) == len(set(sizes)):
            there = [workloads[place] for place in places]
            series = SizeSeries(
                key=key,
                config_key=config_key,
                facts=_shared(there[0], (key, *beside)),
                varied={},
                sizes=sizes,
                workloads=places,
                too_small=tuple(
                    size for size, place in members if small_step(_runs_of(baseline, workloads[place])) is not None
                ),
                along=(
                    *_along(sizes, [settings[place] for place in places]),
                    *_along(sizes, [{name: one.facts.get(name) for name in beside} for one in there]),
                ),
                effects=(),
            )
            yield replace(
                series,
                effects=tuple(_effects(sizes, there, pairs, baseline)) if series.of_tensors else (),
                steps=tuple(size_steps(sizes, there)) if series.in_words else (),
            )


def _changing_with(key: str, workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Facts in which the workloads of a series may differ, for they change with its key alone: a strategy's number of
    ranks, where each strategy has one.
    """
    facts = [one.facts for one in workloads]
    return ("world_size",) if key == STRATEGY and follows("world_size", STRATEGY, facts) else ()


def _shared(workload: Workload, but: Sequence[str]) -> Facts:
    return {name: value for name, value in workload.facts.items() if name not in but and name not in DERIVED}


def _words(settings: Facts, but: str) -> tuple[tuple[str, Scalar], ...]:
    """The settings that no number tells: classes, names, switches. In these a series does not vary."""
    return tuple((key, value) for key, value in settings.items() if key != but and not _is_number(value))


def _along(sizes: Sequence[Size], settings: Sequence[Facts]) -> tuple[str, ...]:
    values = {key: [one.get(key) for one in settings] for key in dict.fromkeys(key for one in settings for key in one)}
    return tuple(key for key, found in values.items() if len(set(found)) > 1 and found != list(sizes))


def _told_apart(series: Sequence[SizeSeries]) -> list[SizeSeries]:
    keys = dict.fromkeys(key for one in series for key in one.facts)
    varied = [key for key in keys if len({one.facts.get(key) for one in series}) > 1]
    return [replace(one, varied={key: one.facts.get(key) for key in varied}) for one in series]


def _effects(
    sizes: Sequence[Size], workloads: Sequence[Workload], pairs: Pairs, baseline: str
) -> Iterator[MultipleEffect]:
    numbers = [size for size in sizes if not isinstance(size, str)]
    multiples = [size for size in numbers if is_multiple(size)]
    of_size = dict(zip(numbers, workloads, strict=True))
    arms = dict.fromkeys(run.arm for one in workloads for run in one.runs if run.arm != baseline and run.measured)
    for size in numbers:
        near = [one for one in multiples if abs(one - size) <= MAX_NEIGHBOUR_DISTANCE * one]
        if near and not is_multiple(size):
            multiple = min(near, key=lambda one: abs(one - size))
            for arm in arms:
                both = [_SpeedupThere(arm, of_size[one], pairs, baseline) for one in (size, multiple)]
                yield _effect(arm, size, multiple, both)


class _SpeedupThere:
    """An arm's speedup at one size, by seed, and the sign that its step or the baseline's is too small to tell."""

    def __init__(self, arm: str, workload: Workload, pairs: Pairs, baseline: str) -> None:
        keys = dict.fromkeys(run.pair_key for run in workload.runs)
        found: dict[int, list[float]] = defaultdict(list)
        for pair in (one for key in keys for one in pairs.get(key, ()) if one.arm == arm):
            times = pair.speed_figures(STEP_MS)
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
