"""Series of workloads that differ in one swept key: a number (the batch size) or a word (the strategy)."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ampsweep.analysis.pairing import mean_figure
from ampsweep.analysis.runs import PEAK_MEMORY, STEP_MS, VAL_LOSS, Run, Scalar
from ampsweep.analysis.statistics import Estimate, in_brackets, mean_difference, mean_ratio, saved_pct
from ampsweep.analysis.workloads import DERIVED, Facts, Workload, follows, varied_keys
from ampsweep.config.modes import report_order
from ampsweep.finding import Finding
from ampsweep.text import GIB, num_bytes, percent

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


class AgainstFirst(Finding):
    """One arm at one word of a series against the same arm at the first; pairs are runs of one seed."""

    arm: str
    value: str
    first: str
    first_arm: str
    """The arm there: itself, or where a strategy has no choice of what casts, its own kind of that."""
    throughput: Estimate | None
    """Samples a second over those at the first, by the runs' median step times; None without uncontaminated runs."""
    memory_saved_bytes: Estimate | None
    """Peak at the first minus that here, of the fullest rank."""
    memory_saved_pct: Estimate | None
    loss_gap: Estimate | None
    """Final validation loss here minus that at the first; None where a step has another number of samples."""
    same_samples: bool

    @property
    def sentence(self) -> str:
        saved, pct, gap = self.memory_saved_bytes, self.memory_saved_pct, self.loss_gap
        told = [] if self.throughput is None else [f"{self.throughput.ratio_text} the samples a second"]
        if saved is not None and pct is not None:
            kind = "less" if saved.value > 0 else "more"
            more = f"{num_bytes(abs(saved.value))} {kind} on the fullest rank ({percent(abs(pct.value))})"
            told.append(more if saved.value else "the same peak of the fullest rank")
        if gap is not None:
            value, ends = gap.text(digits=2, sign=True)
            told.append(f"val loss gap {value}{in_brackets(ends)}")
        n = max((of.n for of in (self.throughput, saved, gap) if of is not None), default=0)
        first = self.first if self.first_arm == self.arm else f"{self.first_arm} of {self.first}"
        other = "" if self.same_samples else "; its steps have another number of samples, so losses are not compared"
        return f"{self.arm}: {self.value} against {first}, {', '.join(told) or 'no figures to compare'} (n={n}){other}"


@dataclass(frozen=True, kw_only=True)
class Series:
    """Workloads that differ in one swept key only."""

    key: str
    """A fact of the identity, or a config key."""
    values: tuple[Scalar, ...]
    """From the smallest; words in their usual order."""
    workloads: tuple[int, ...]
    """Their places among those of the comparison."""
    facts: Facts
    varied: Facts
    """Those in which other series of the same key differ."""
    along: tuple[str, ...]
    """Config keys, and the number of ranks, that change with the key, to other values than it has."""
    steps: tuple[AgainstFirst, ...]
    """Each arm at each word against the first one; none where the values are numbers."""

    @cached_property
    def in_words(self) -> bool:
        return not all(isinstance(one, int | float) and not isinstance(one, bool) for one in self.values)

    @property
    def name(self) -> str:
        return _NAMES.get(self.key, self.key)

    @property
    def heading(self) -> str:
        told = ", ".join(f"{key} {value}" for key, value in self.varied.items() if value is not None)
        kind = f"Each {self.name} beside the others" if self.in_words else f"Against {self.name}"
        return kind + (f" ({told})" if told else "")

    @property
    def lines(self) -> list[str]:
        verb = "changes" if len(self.along) == 1 else "change"
        also = [f"With {self.name} {', '.join(self.along)} {verb}, too"] if self.along else []
        return [*(one.sentence for one in self.steps), *also]


def value_text(value: Scalar) -> str:
    """A value as it stands in a config."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def swept_series(workloads: Sequence[Workload]) -> tuple[Series, ...]:
    """The series of two values or more among `workloads`; a workload is in one for each key that was swept."""
    found = []
    for key in dict.fromkeys(key for one in workloads for key in one.facts if key not in _NOT_SWEPT):
        series = [*_series_of(key, workloads)]
        varied = varied_keys([one.facts for one in series])
        found += [replace(one, varied={name: one.facts.get(name) for name in varied}) for one in series]
    return tuple(found)


def _series_of(key: str, workloads: Sequence[Workload]) -> Iterator[Series]:
    # Where each strategy has its own number of ranks, the two are one.
    is_alone = key == "parallel" and follows("world_size", key, [one.facts for one in workloads])
    beside = (key, *DERIVED, *(("world_size",) if is_alone else ()))
    groups: dict[object, list[int]] = defaultdict(list)
    for place, one in enumerate(workloads):
        if one.facts.get(key) is not None:
            groups[tuple((name, value) for name, value in one.facts.items() if name not in beside)].append(place)
    for places in groups.values():
        there = sorted(places, key=lambda place: _order(workloads[place].facts[key]))
        values = tuple(workloads[place].facts[key] for place in there)
        if 1 < len(values) == len(set(values)):
            found = [workloads[place] for place in there]
            facts = [{name: one.facts.get(name) for name in beside[1 + len(DERIVED) :]} for one in found]
            series = Series(
                key=key,
                values=values,
                workloads=tuple(there),
                facts={name: value for name, value in found[0].facts.items() if name not in beside},
                varied={},
                along=(*_along(key, values, [one.settings for one in found]), *_along(key, values, facts)),
                steps=(),
            )
            yield replace(series, steps=tuple(_against_first(values, found))) if series.in_words else series


def _order(value: Scalar) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 0, value, ""
    return 1, _STRATEGIES.index(value) if value in _STRATEGIES else len(_STRATEGIES), str(value)


def _along(key: str, values: Sequence[Scalar], found: Sequence[Facts]) -> tuple[str, ...]:
    return tuple(
        name
        for name in varied_keys(found)
        if [one.get(name) for one in found] != list(values) and not name.startswith(f"{key}.")
    )


def _against_first(values: Sequence[Scalar], workloads: Sequence[Workload]) -> Iterator[AgainstFirst]:
    (first, reference), *others = zip(map(value_text, values), workloads, strict=True)
    for value, workload in others:
        for arm in sorted({run.arm for run in workload.runs if run.measured}, key=report_order):
            first_arm = arm if any(run.arm == arm for run in reference.runs) else without_choice_of_cast(arm)
            there, here = _alike(first_arm, reference), _alike(arm, workload)
            pairs = [(there[key], runs) for key, runs in here.items() if key in there]
            if pairs:
                yield _step(arm, first_arm, value, first, pairs)


def without_choice_of_cast(arm: str) -> str:
    """The arm's label without what casts: DDP's `amp_bf16` casts as FSDP2's `amp_bf16+mixed_precision=autocast` does.

    >>> without_choice_of_cast("amp_bf16+reduce_dtype=bfloat16+mixed_precision=autocast")
    'amp_bf16+reduce_dtype=bfloat16'
    """
    return "+".join(part for part in arm.split("+") if not part.startswith("mixed_precision="))


_Runs = Sequence[Run]


def _step(arm: str, first_arm: str, value: str, first: str, pairs: Sequence[tuple[_Runs, _Runs]]) -> AgainstFirst:
    samples = [{run.record.identity.global_batch_size for run in runs} for runs in pairs[0]]
    peaks = [(a * GIB, b * GIB) for a, b in _both(pairs, lambda runs: mean_figure(runs, PEAK_MEMORY)) if a]
    losses = _both(pairs, lambda runs: mean_figure(runs, VAL_LOSS)) if samples[0] == samples[1] else []
    return AgainstFirst(
        arm=arm,
        value=value,
        first=first,
        first_arm=first_arm,
        throughput=mean_ratio((b, a) for a, b in _both(pairs, _rate)),
        memory_saved_bytes=mean_difference([a - b for a, b in peaks]),
        memory_saved_pct=mean_difference([saved_pct(a, b) for a, b in peaks]),
        loss_gap=mean_difference([b - a for a, b in losses]),
        same_samples=samples[0] == samples[1],
    )


def _both(pairs: Sequence[tuple[_Runs, _Runs]], figure: Callable[[_Runs], float | None]) -> list[tuple[float, float]]:
    known = ((figure(a), figure(b)) for a, b in pairs)
    return [(a, b) for a, b in known if a is not None and b is not None]


def _alike(arm: str, workload: Workload) -> dict[object, list[Run]]:
    """The arm's runs by seed and conditions; a rank has the threads of its share of the cores, and so that differs."""
    found: dict[object, list[Run]] = defaultdict(list)
    for run in workload.runs:
        if run.arm == arm and run.measured:
            conditions = {key: value for key, value in run.conditions.items() if key != "num_threads"}
            found[run.seed, tuple(conditions.items())].append(run)
    return found


def _rate(runs: _Runs) -> float | None:
    """Samples a millisecond."""
    times = [(run, time) for run in runs if (time := run.compared_figure(STEP_MS))]
    rates = [(run.record.identity.global_batch_size or 1) / time for run, time in times]
    return statistics.fmean(rates) if rates else None
