"""Judgements on an arm's speed, memory and final metrics: a word for each, with figures and sentences."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.figure_keys import VAL_LOSS, FigureKeys
from ampsweep.analysis.pairing import Pair, in_order_of_completion
from ampsweep.analysis.runs import VAL_ACCURACY, metric_words
from ampsweep.analysis.sequential import equivalence_tests, level_of_looks
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, in_brackets
from ampsweep.finding import Finding
from ampsweep.metrics import METRICS
from ampsweep.text import number, plural, signed

ParityVerdict = Literal["equivalent", "worse", "better", "inconclusive"]

_VERDICTS: Final[dict[str, ParityVerdict]] = {
    "inside": "equivalent",
    "above": "worse",
    "below": "better",
    "open": "inconclusive",
}


class Parity(Finding):
    """A final metric of an arm compared with the baseline's, in the metric's unit (a loss, a share)."""

    metric: str
    verdict: ParityVerdict
    n: int  # pairs in which both arms took all of their steps, up to the look that decided or the end of the plan
    gap: float  # mean over pairs of the arm's value minus the baseline's
    low: float | None
    high: float | None  # 90% interval of the gap, under a plan that of all looks together; None under three pairs
    margin: float  # largest gap that counts as none: `margin_pct` of the baseline's mean loss, or in percentage points
    margin_pct: float
    further_seeds: int | None
    """That would probably settle an inconclusive verdict, 0 for others; None: over 100, or more than are planned."""
    not_worse: bool  # True if the interval excludes that the arm is worse by the margin, or did so at an earlier look
    is_share: bool  # True if the metric is a share; gaps are in percentage points
    is_higher_better: bool = False
    max_pairs: int | None = None  # planned pairs, with a look after each; None: one test of all pairs
    looks: tuple[Estimate, ...] = ()  # the gap with its interval at each look, up to the last

    @property
    def sentence(self) -> str:
        return f"{metric_words(self.metric)} {self.verdict}: {self.grounds}"

    @property
    def grounds(self) -> str:
        if self.low is None or self.high is None:
            return f"gap {self._gap_alone} in {plural(self.n, 'pair')}, at least {MIN_PAIRS} are needed"
        if self.low == self.high:
            gap = f"{signed(self._factor * self.gap) if self.gap else 'of 0'} in every pair,"
        else:
            mean, low, high = (self._factor * value for value in (self.gap, self.low, self.high))
            value, ends = Estimate(value=mean, n=self.n, low=low, high=high).text(digits=2, sign=True)
            gap = f"{value}{self._unit}{in_brackets(ends)}"
        beyond = "above" if self.gap > 0 else "below"
        place = {"equivalent": "inside", "inconclusive": "crosses"}.get(self.verdict, beyond)
        share = "" if self.is_share else f" ({self.margin_pct:g}%)"
        n = f"n={self.n}" if self.max_pairs is None else f"n={self.n} of at most {self.max_pairs}"
        return f"gap {gap} {place} ±{number(self._factor * self.margin, 2)}{self._unit}{share}, {n}"

    @property
    def noun(self) -> str:
        return "loss" if self.metric == VAL_LOSS else metric_words(self.metric)

    @property
    def size(self) -> str:
        """'5.0% of the loss', without a sign."""
        gap = abs(100 * self.gap if self.is_share else self.margin_pct * self.gap / self.margin)
        return f"{number(gap, 2)}{self._unit or '%'} of the {self.noun}"

    @property
    def _factor(self) -> float:
        return 100.0 if self.is_share else 1.0

    @property
    def _unit(self) -> str:
        return " pp" if self.is_share else ""

    @property
    def _gap_alone(self) -> str:
        return f"{signed(self._factor * self.gap, 2)}{self._unit}"


def parity(
    pairs: Sequence[Pair], metric: str, keys: FigureKeys, *, margin_pct: float, max_pairs: int | None = None
) -> Parity | None:
    """Test the paired gaps of the final `metric` against a margin above 0, in percent of the baseline's mean loss, or
    in percentage points of a share. None if no pair has the metric, or if the baseline's loss is 0.

    With `max_pairs` the test is that of `equivalence_tests`, which looks after each pair.
    """
    ordered = in_order_of_completion(pairs)
    values = [figures for pair in ordered if (figures := pair.figures(metric)) is not None][:max_pairs]
    recorded = keys.recorded(metric)
    is_share = recorded in METRICS and METRICS[recorded].better == "higher"
    is_higher_better = is_share if metric != VAL_LOSS else keys.is_higher_better
    totals = accumulate(value for value, _ in values)
    scales = [1.0 if is_share else abs(total) / n for n, total in enumerate(totals, start=1)]
    if not values or scales[-1] == 0:
        return None
    gaps = [arm - reference for reference, arm in values]
    margins = [margin_pct / 100 * scale for scale in scales]
    sign = -1 if is_higher_better else 1
    tests = [*equivalence_tests([sign * gap for gap in gaps], margins, max_pairs)]
    ends = [sorted((sign * of.low, sign * of.high)) for of in tests]
    looks = tuple(
        Estimate(value=statistics.fmean(gaps[: of.n]), n=of.n, low=low, high=high)
        for of, (low, high) in zip(tests, ends, strict=True)
    )
    tested = tests[-1] if tests else None
    last = looks[-1] if looks else Estimate(value=statistics.fmean(gaps), n=len(gaps))
    return Parity(
        metric=recorded,
        verdict=_VERDICTS["open" if tested is None else tested.position],
        n=last.n,
        gap=last.value,
        low=last.low,
        high=last.high,
        margin=margins[last.n - 1],
        margin_pct=margin_pct,
        further_seeds=(
            MIN_PAIRS - len(gaps)
            if tested is None
            else tested.further_pairs(None if max_pairs is None else level_of_looks(max_pairs))
        ),
        not_worse=any(look.high < look.margin for look in tests),
        is_share=is_share,
        is_higher_better=is_higher_better,
        max_pairs=max_pairs,
        looks=looks,
    )


def final_parities(
    pairs: Sequence[Pair], keys: FigureKeys, *, margin_pct: float, max_pairs: int | None = None
) -> tuple[Parity, ...]:
    """The tests of the final loss and accuracy, or of the metric that was chosen, which decides alone."""
    metrics = (VAL_LOSS, VAL_ACCURACY) if keys.metric == VAL_LOSS else (VAL_LOSS,)
    found = (parity(pairs, metric, keys, margin_pct=margin_pct, max_pairs=max_pairs) for metric in metrics)
    return tuple(parity for parity in found if parity is not None)


EffectWord = Literal["faster", "slower", "saves", "adds", "unresolved", "same", "too few pairs", "not measured"]
ParityWord = ParityVerdict | Literal["not measured"]


@dataclass(frozen=True, kw_only=True)
class Judgements:
    """A word on speed, memory and parity of an arm against the baseline. `unresolved`: the 95% interval includes no
    difference. `too few pairs`: there is no interval."""

    figures: ArmComparison = field(repr=False)
    speed: EffectWord
    memory: EffectWord
    parity: ParityWord
    parities: tuple[Parity, ...]


_WORST_FIRST: Final[tuple[ParityVerdict, ...]] = ("worse", "inconclusive", "equivalent", "better")


def judge(arm: ArmComparison, parities: tuple[Parity, ...]) -> Judgements:
    verdicts = {parity.verdict for parity in parities}
    return Judgements(
        figures=arm,
        speed=_word(arm.speedup, 1.0, "slower", "faster", MIN_PAIRS),
        memory=_word(arm.memory_saved_bytes, 0.0, "adds", "saves", 2),  # equal bytes in two pairs are exact
        parity=next((verdict for verdict in _WORST_FIRST if verdict in verdicts), "not measured"),
        parities=parities,
    )


def _word(effect: Estimate | None, null: float, below: EffectWord, above: EffectWord, min_pairs: int) -> EffectWord:
    if effect is None:
        return "not measured"
    if effect.n < min_pairs or (effect.interval is None and not effect.exact):
        return "too few pairs"
    if effect.resolves(null):
        return above if effect.value > null else below
    return "same" if effect.exact else "unresolved"
