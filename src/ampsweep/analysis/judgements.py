"""Judgements on an arm's speed, memory and final metrics: a word for each, with figures and sentences."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import neg
from typing import Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.figure_keys import VAL_LOSS, FigureKeys
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import metric_words
from ampsweep.analysis.statistics import MAX_FURTHER_PAIRS, MIN_PAIRS, Estimate, in_brackets, two_one_sided_tests
from ampsweep.analysis.step_limits import SmallStep, StepLimit, limits_text
from ampsweep.finding import Finding
from ampsweep.metrics import METRICS
from ampsweep.text import num_bytes, number, percent, plural, signed

ParityVerdict = Literal["equivalent", "worse", "better", "inconclusive"]

_VERDICTS: Final[dict[str, ParityVerdict]] = {
    "inside": "equivalent",
    "above": "worse",
    "below": "better",
    "open": "inconclusive",
}
"""Verdicts on a metric that is better lower."""
_OPPOSITE: Final[dict[ParityVerdict, ParityVerdict]] = {"worse": "better", "better": "worse"}


class Parity(Finding):
    """A final metric of an arm compared with the baseline's, in the metric's unit (a loss, a share)."""

    metric: str
    verdict: ParityVerdict
    n: int  # pairs in which both arms took all of their steps
    gap: float  # mean over pairs of the arm's value minus the baseline's
    low: float | None
    high: float | None  # 90% t-interval of the gap, that of TOST at 5%; None under three pairs
    margin: float  # largest gap that counts as none: `margin_pct` of the baseline's mean loss, or in percentage points
    margin_pct: float
    further_seeds: int | None  # that would probably settle an inconclusive verdict (0 for others); None: more than 100
    not_worse: bool  # True if the interval excludes that the arm is worse by the margin
    is_share: bool  # True if the metric is a share; gaps are in percentage points
    is_higher_better: bool = False

    @property
    def is_tested(self) -> bool:
        return self.low is not None

    @property
    def sentence(self) -> str:
        found = f"{metric_words(self.metric)} {self.verdict}: {self.grounds}"
        return f"{found}; {self.settled_by}" if self.settled_by else found

    @property
    def grounds(self) -> str:
        if not self.is_tested:
            return f"gap {self._gap_alone} in {plural(self.n, 'pair')}, at least {MIN_PAIRS} are needed"
        margin = f"±{number(self._factor * self.margin, 2)}{self._unit}"
        is_above = self.verdict == ("better" if self.is_higher_better else "worse")
        place = {"equivalent": "inside", "inconclusive": "crosses"}.get(self.verdict, "above" if is_above else "below")
        share = "" if self.is_share else f" ({self.margin_pct:g}%)"
        return f"gap {self._gap_with_interval} {place} {margin}{share}, n={self.n}"

    @property
    def settled_by(self) -> str:
        if self.verdict != "inconclusive" or not self.is_tested:
            return ""
        further = self.further_seeds
        seeds = f"about {plural(further, 'more seed')}" if further else f"more than {MAX_FURTHER_PAIRS} more seeds"
        return f"{seeds} would settle it"

    @property
    def short(self) -> str:
        name = metric_words(self.metric)
        if self.gap == 0:
            return f"no {name} gap"
        share = "" if self.is_share else f" ({signed(self.margin_pct * self.gap / self.margin, 2)}%)"
        margin = f"{self.margin_pct:g}{self._unit or '%'}"
        verdicts = {"equivalent": f"equivalent within {margin}", "inconclusive": "parity inconclusive"}
        verdict = verdicts.get(self.verdict, f"{self.verdict} by more than {margin}")
        return f"{name} gap {self._gap_alone}{share}, {verdict}"

    @property
    def _factor(self) -> float:
        return 100.0 if self.is_share else 1.0

    @property
    def _unit(self) -> str:
        return " pp" if self.is_share else ""

    @property
    def _gap_alone(self) -> str:
        return f"{signed(self._factor * self.gap, 2)}{self._unit}"

    @property
    def _gap_with_interval(self) -> str:
        if self.low == self.high:
            in_each = "of 0" if self.gap == 0 else signed(self._factor * self.gap)
            return f"{in_each} in every pair,"
        assert self.low is not None, self
        assert self.high is not None, self
        mean, low, high = (self._factor * value for value in (self.gap, self.low, self.high))
        value, ends = Estimate(value=mean, n=self.n, low=low, high=high).text(digits=2, sign=True)
        return f"{value}{self._unit}{in_brackets(ends)}"


def parity(pairs: Sequence[Pair], metric: str, keys: FigureKeys, *, margin_pct: float) -> Parity | None:
    """Test the paired gaps of the final `metric` against a margin above 0, in percent of the baseline's mean loss, or
    in percentage points of a share. None if no pair has the metric, or if the baseline's loss is 0."""
    values = [figures for pair in pairs if (figures := pair.figures(metric)) is not None]
    recorded = keys.recorded(metric)
    is_share = recorded in METRICS and METRICS[recorded].better == "higher"
    is_higher_better = is_share if metric != VAL_LOSS else keys.is_higher_better
    scale = 1.0 if is_share or not values else abs(statistics.fmean(value for value, _ in values))
    if not values or scale == 0:
        return None
    gaps = [arm - reference for reference, arm in values]
    margin = margin_pct / 100 * scale
    tested = two_one_sided_tests(gaps, margin) if len(gaps) >= MIN_PAIRS else None
    verdict = _VERDICTS["open" if tested is None else tested.position]
    return Parity(
        metric=recorded,
        verdict=_OPPOSITE.get(verdict, verdict) if is_higher_better else verdict,
        n=len(gaps),
        gap=statistics.fmean(gaps),
        low=None if tested is None else tested.low,
        high=None if tested is None else tested.high,
        margin=margin,
        margin_pct=margin_pct,
        further_seeds=MIN_PAIRS - len(gaps) if tested is None else tested.further_pairs,
        not_worse=tested is not None and (tested.low > -margin if is_higher_better else tested.high < margin),
        is_share=is_share,
        is_higher_better=is_higher_better,
    )


def overall_parity(parities: Sequence[Parity]) -> ParityVerdict | None:
    """The worst verdict over all metrics of an arm, `better` only if all are; None without any."""
    verdicts = {parity.verdict for parity in parities}
    order: tuple[ParityVerdict, ...] = ("worse", "inconclusive", "equivalent", "better")
    return next((verdict for verdict in order if verdict in verdicts), None)


SpeedWord = Literal["faster", "slower", "unresolved", "same", "too few pairs", "not measured"]
MemoryWord = Literal["saves", "adds", "unresolved", "same", "too few pairs", "not measured"]
ParityWord = ParityVerdict | Literal["not measured"]


@dataclass(frozen=True, kw_only=True)
class Judgements:
    """A word on speed, memory and parity of an arm against the baseline. `unresolved`: the 95% interval includes no
    difference. `too few pairs`: there is no interval."""

    figures: ArmComparison = field(repr=False)
    speed: SpeedWord
    memory: MemoryWord
    parity: ParityWord
    parities: tuple[Parity, ...]
    contaminated: tuple[tuple[str, int], ...]  # (arm, contaminated runs) of the arm and of the baseline, without zeros
    workload_is_small: bool = False  # True if launching operators limits the baseline's step too

    @property
    def speed_text(self) -> str:
        """The speed with interval and n, its limits, and the runs that were not checked for contamination."""
        n = "" if self.figures.speedup is None or self.contaminated else f", n={self.figures.speedup.n}"
        runs = self._of_which_runs if self.contaminated else []
        return self._speed_text + n + _in_brackets([*runs, *self._remarks(self.figures.limits)])

    @property
    def summary(self) -> str:
        """Speed, memory and parity in a clause, with n only where it is not that of the completed pairs."""
        n = self.figures.num_completed_pairs
        # Launching is not repeated where the whole workload is called too small.
        left_out = SmallStep if self.workload_is_small else ()
        remarks = self._remarks([limit for limit in self.figures.limits if not isinstance(limit, left_out)])
        speed = self._speed_text + _in_brackets([*self._of_which_runs, *remarks])
        memory = self._memory_text + _n_unless(n, self.figures.memory_saved_bytes)
        nothing = f"no final {self.figures.keys.metric_words} to compare"
        learned = [f"{parity.short}{_n_unless(n, parity)}" for parity in self.parities] or [nothing]
        return ", ".join([speed, memory, *learned])

    @property
    def is_timed(self) -> bool:
        return self.speed in ("faster", "slower", "same", "unresolved")

    @property
    def _speed_text(self) -> str:
        if self.figures.speedup is None:
            return f"speed not {'compared' if self.contaminated else 'measured'}"
        if self.speed == "same":
            return "the same speed"
        ratio = self.figures.speedup.ratio_text
        return f"no resolved speed difference, {ratio}" if self.speed == "unresolved" else f"{ratio} the speed"

    @property
    def _of_which_runs(self) -> list[str]:
        runs = " and ".join(plural(count, f"contaminated {arm} run") for arm, count in self.contaminated)
        if self.figures.speedup is None:
            return [runs] if runs else []
        if runs:
            return [f"n={self.figures.speedup.n}, without {runs}"]
        return [] if self.figures.speedup.n == self.figures.num_completed_pairs else [f"n={self.figures.speedup.n}"]

    def _remarks(self, limits: Sequence[StepLimit]) -> list[str]:
        of = self.figures
        if of.speedup is None:
            return []
        remarks = [f"limited by {limits_text(limits)}"] if limits else []
        if of.num_unchecked:
            some = of.num_unchecked < of.num_timed
            share = f" of {of.num_unchecked} of {plural(of.num_timed, 'run')}" if some else ""
            remarks.append(f"contamination{share} unknown")
        return remarks

    @property
    def _memory_text(self) -> str:
        memory = self.figures.keys.memory_words
        saved, share = self.figures.memory_saved_bytes, self.figures.memory_saved_pct
        if saved is None or share is None:
            return "memory not measured"
        if saved.value == 0:
            return "no resolved memory difference" if self.memory == "unresolved" else f"the same {memory}"
        word, part = ("saves", share) if saved.value > 0 else ("adds", share.mapped(neg))
        size = f"{num_bytes(abs(saved.value))} of {memory}"
        figure = f"{word} {size} ({percent(part.value)}{in_brackets(part.text()[1])})"
        return f"no resolved memory difference, {figure}" if self.memory == "unresolved" else figure


def judge(arm: ArmComparison, baseline: ArmComparison, parities: tuple[Parity, ...]) -> Judgements:
    return Judgements(
        figures=arm,
        speed=_speed(arm.speedup),
        memory=_memory(arm.memory_saved_bytes),
        parity=overall_parity(parities) or "not measured",
        parities=parities,
        contaminated=tuple((side.arm, side.num_contaminated) for side in (arm, baseline) if side.num_contaminated),
        workload_is_small=any(isinstance(limit, SmallStep) for limit in baseline.limits),
    )


def _speed(speedup: Estimate | None) -> SpeedWord:
    if speedup is None:
        return "not measured"
    if speedup.n < MIN_PAIRS:
        return "too few pairs"
    if speedup.resolves(1.0):
        return "faster" if speedup.value > 1 else "slower"
    return "same" if speedup.exact else "unresolved"


def _memory(saved: Estimate | None) -> MemoryWord:
    if saved is None:
        return "not measured"
    if saved.value == 0 and saved.exact:
        return "same"
    if saved.interval is None and not saved.exact:
        return "too few pairs"
    if not saved.resolves(0.0):
        return "unresolved"
    return "saves" if saved.value > 0 else "adds"


def _in_brackets(clauses: Sequence[str]) -> str:
    return f" ({'; '.join(clauses)})" if clauses else ""


def _n_unless(n: int, of: Estimate | Parity | None) -> str:
    return "" if of is None or of.n == n else f" (n={of.n})"
