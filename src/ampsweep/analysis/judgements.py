"""Judgements on an arm's speed, memory and learning: a word for each, with its figures and in sentences."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import neg
from typing import Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import metric_words
from ampsweep.analysis.statistics import (
    MAX_FURTHER_PAIRS,
    MIN_PAIRS,
    Estimate,
    Position,
    in_brackets,
    two_one_sided_tests,
)
from ampsweep.analysis.step_limits import SmallStep, StepLimit, limits_text
from ampsweep.finding import Finding
from ampsweep.metrics import METRICS
from ampsweep.text import num_bytes, number, percent, plural, signed

_NO_LOSS: Final = "no final loss to compare"

ParityVerdict = Literal["equivalent", "worse", "better", "inconclusive"]

_VERDICTS: Final[dict[Position, ParityVerdict]] = {
    "inside": "equivalent",
    "above": "worse",
    "below": "better",
    "open": "inconclusive",
}
"""Verdicts on a metric that is better lower."""
_OPPOSITE: Final[dict[ParityVerdict, ParityVerdict]] = {"worse": "better", "better": "worse"}


class Parity(Finding):
    """One final metric of an arm against the baseline's, in the metric's own unit (a loss, a share)."""

    metric: str
    verdict: ParityVerdict
    n: int
    """Pairs in which both arms took all of their steps."""
    gap: float
    """Mean over pairs of the arm's value minus the baseline's."""
    low: float | None
    high: float | None
    """90% t-interval of the gap, that of TOST at 5%; None under three pairs."""
    margin: float
    """The gap that counts as none on either side: `margin_pct` of the baseline's mean loss, or percentage points."""
    margin_pct: float
    further_seeds: int | None
    """About how many more seeds would settle an inconclusive verdict (0 of the others); None if more than 100."""
    not_worse: bool
    """True if the interval leaves out that the arm is worse by the margin."""
    is_share: bool
    """True if the metric is a share that is better higher; its gaps are in percentage points."""

    @property
    def is_tested(self) -> bool:
        """True if there are enough pairs for an interval, and so for another verdict than `inconclusive`."""
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
        is_above = self.verdict == ("better" if self.is_share else "worse")
        place = {"equivalent": "inside", "inconclusive": "crosses"}.get(self.verdict, "above" if is_above else "below")
        share = "" if self.is_share else f" ({self.margin_pct:g}%)"
        return f"gap {self._gap_with_interval} {place} {margin}{share}, n={self.n}"

    @property
    def settled_by(self) -> str:
        """The seeds that would settle an inconclusive verdict; else empty."""
        if self.verdict != "inconclusive" or not self.is_tested:
            return ""
        further = self.further_seeds
        seeds = f"about {plural(further, 'more seed')}" if further else f"more than {MAX_FURTHER_PAIRS} more seeds"
        return f"{seeds} would settle it"

    @property
    def short(self) -> str:
        """Gap and verdict in a few words."""
        name = metric_words(self.metric)
        if self.gap == 0:
            return f"no {name} gap"
        share = "" if self.is_share else f" ({signed(self.margin_pct * self.gap / self.margin, 2)}%)"
        margin = f"{self.margin_pct:g}{self._unit or '%'}"
        told = {"equivalent": f"equivalent within {margin}", "inconclusive": "parity inconclusive"}
        return f"{name} gap {self._gap_alone}{share}, {told.get(self.verdict, f'{self.verdict} by more than {margin}')}"

    @property
    def _factor(self) -> float:
        """Shares are shown in percentage points."""
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


def parity(pairs: Sequence[Pair], metric: str, *, margin_pct: float) -> Parity | None:
    """Hold the paired gaps of `metric` at the end of training against the margin, which is above 0.

    None where no pair has the metric, and where the baseline's loss is 0.

    Args:
        pairs: an arm's pairs with the baseline.
        metric: better lower (`margin_pct` is then of the baseline's mean), or a share (in percentage points).
    """
    values = [figures for pair in pairs if (figures := pair.figures(metric)) is not None]
    is_share = METRICS[metric].better == "higher"
    scale = 1.0 if is_share or not values else abs(statistics.fmean(value for value, _ in values))
    if not values or scale == 0:
        return None
    gaps = [arm - reference for reference, arm in values]
    margin = margin_pct / 100 * scale
    tested = two_one_sided_tests(gaps, margin) if len(gaps) >= MIN_PAIRS else None
    verdict = _VERDICTS["open" if tested is None else tested.position]
    return Parity(
        metric=metric,
        verdict=_OPPOSITE.get(verdict, verdict) if is_share else verdict,
        n=len(gaps),
        gap=statistics.fmean(gaps),
        low=None if tested is None else tested.low,
        high=None if tested is None else tested.high,
        margin=margin,
        margin_pct=margin_pct,
        further_seeds=MIN_PAIRS - len(gaps) if tested is None else tested.further_pairs,
        not_worse=tested is not None and (tested.low > -margin if is_share else tested.high < margin),
        is_share=is_share,
    )


def overall_parity(parities: Sequence[Parity]) -> ParityVerdict | None:
    """The verdict on all metrics of an arm: `worse` if one is, else `inconclusive` if one is; None without any."""
    verdicts = {one.verdict for one in parities}
    order: tuple[ParityVerdict, ...] = ("worse", "inconclusive", "equivalent", "better")
    return next((verdict for verdict in order if verdict in verdicts), None)


SpeedWord = Literal["faster", "slower", "unresolved", "same", "too few pairs", "not measured"]
MemoryWord = Literal["saves", "adds", "unresolved", "same", "too few pairs", "not measured"]
ParityWord = ParityVerdict | Literal["not measured"]


@dataclass(frozen=True, kw_only=True)
class Judgements:
    """One arm against the baseline: a word for a badge on each of three topics.

    `unresolved`: the 95% interval does not tell the figure from no difference. `too few pairs`: there is no interval.
    """

    figures: ArmComparison = field(repr=False)
    speed: SpeedWord
    memory: MemoryWord
    parity: ParityWord
    parities: tuple[Parity, ...]
    contaminated: tuple[tuple[str, int], ...]
    """(arm, number of contaminated runs) of the arm and of the baseline, unless 0."""
    workload_is_small: bool = False
    """True if launching operators limits the baseline's step too."""

    @property
    def speed_text(self) -> str:
        """The speed with its interval and n, what limits it, and how far it was checked."""
        n = "" if self.figures.speedup is None or self.contaminated else f", n={self.figures.speedup.n}"
        runs = self._of_which_runs if self.contaminated else []
        return self._speed_text + n + _in_brackets([*runs, *self._remarks(self.figures.limits)])

    @property
    def summary(self) -> str:
        """Speed, memory and parity in one clause; an n only if it differs from that of the completed pairs."""
        n = self.figures.num_completed_pairs
        speed = self._speed_text + _in_brackets([*self._of_which_runs, *self._short_remarks])
        memory = self._memory_text + _other_n(self.figures.memory_saved_bytes, n)
        learned = [f"{one.short}{_other_n(one, n)}" for one in self.parities] or [_NO_LOSS]
        return ", ".join([speed, memory, *learned])

    @property
    def is_timed(self) -> bool:
        """True if there are enough pairs to judge the speed by."""
        return self.speed in ("faster", "slower", "same", "unresolved")

    @property
    def _speed_text(self) -> str:
        if self.figures.speedup is None:
            return f"speed not {'compared' if self.contaminated else 'measured'}"
        told = self.figures.speedup.ratio_text
        match self.speed:
            case "same":
                return "the same speed"
            case "unresolved":
                return f"no resolved speed difference, {told}"
            case _:
                return f"{told} the speed"

    @property
    def _of_which_runs(self) -> list[str]:
        """The n of the speed unless it is that of the completed pairs, and the contaminated runs that it lacks."""
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
        unchecked = [_unchecked_text(of.num_unchecked, of.num_timed)] if of.num_unchecked else []
        return [f"limited by {limits_text(limits)}", *unchecked] if limits else unchecked

    @property
    def _short_remarks(self) -> list[str]:
        """The remarks on a speed; none on launching if the whole workload is called too small."""
        told = [limit for limit in self.figures.limits if not (self.workload_is_small and isinstance(limit, SmallStep))]
        return self._remarks(told)

    @property
    def _memory_text(self) -> str:
        """Bytes with their share and its interval."""
        saved, share = self.figures.memory_saved_bytes, self.figures.memory_saved_pct
        if saved is None or share is None:
            return "memory not measured"
        if saved.value == 0:
            return "no resolved memory difference" if self.memory == "unresolved" else "the same peak memory"
        word, part = ("saves", share) if saved.value > 0 else ("adds", share.mapped(neg))
        size = f"{num_bytes(abs(saved.value))} of peak memory"
        figure = f"{word} {size} ({percent(part.value)}{in_brackets(part.text()[1])})"
        return f"no resolved memory difference, {figure}" if self.memory == "unresolved" else figure


def judge(arm: ArmComparison, baseline: ArmComparison, parities: tuple[Parity, ...]) -> Judgements:
    """Judge an arm other than the baseline; `parities` holds its final metrics."""
    return Judgements(
        figures=arm,
        speed=_speed(arm.speedup),
        memory=_memory(arm.memory_saved_bytes),
        parity=overall_parity(parities) or "not measured",
        parities=parities,
        contaminated=tuple((one.arm, one.num_contaminated) for one in (arm, baseline) if one.num_contaminated),
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


def _unchecked_text(num_unchecked: int, num_timed: int) -> str:
    """A clause on timed runs whose contamination is unknown."""
    share = "" if num_unchecked == num_timed else f" of {num_unchecked} of {plural(num_timed, 'run')}"
    return f"contamination{share} unknown"


def _in_brackets(clauses: Sequence[str]) -> str:
    return f" ({'; '.join(clauses)})" if clauses else ""


def _other_n(of: Estimate | Parity | None, n: int) -> str:
    return "" if of is None or of.n == n else f" (n={of.n})"
