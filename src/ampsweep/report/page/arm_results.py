"""Results of an arm on verdict cards: a figure, its uncertainty and a word."""

from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.statistics import Estimate
from ampsweep.report.estimate_text import estimate, ratio_estimate
from ampsweep.report.figures.pair_effects import gap
from ampsweep.report.page.markup import Markup, tag
from ampsweep.report.sentences.arm_findings import metric_words
from ampsweep.text import num_bytes, number, percent

_GOOD: Final = ("▲", "good")
_BAD: Final = ("▼", "bad")
_EVEN: Final = ("=", "even")
_OPEN: Final = ("?", "open")
_TONES: Final = {
    "faster": _GOOD,
    "saves": _GOOD,
    "equivalent": _GOOD,
    "better": _GOOD,
    "slower": _BAD,
    "adds": _BAD,
    "worse": _BAD,
    "same": _EVEN,
}
"""Sign and tone of words that answer the question; the other words leave it open."""


def word(told: str) -> Markup:
    """A word of a judgement, with a sign and a tone that say whether it is good news."""
    sign, tone = _TONES.get(told, _OPEN)
    return tag("span", tag("span", sign, aria_hidden="true"), f" {told}", class_=f"word {tone}")


def speed(arm: ArmComparison) -> tuple[str, str]:
    """Speedup over the baseline: the figure and its uncertainty."""
    if arm.speedup is None:
        return "-", ""
    value, ends = ratio_estimate(arm.speedup)
    return f"{value}x", _uncertainty(arm.speedup, "" if ends is None else f"[{ends[0]}, {ends[1]}]x")


def memory(arm: ArmComparison) -> tuple[str, str]:
    """Change of the peak memory against the baseline, in percent; then in bytes."""
    saved, share = arm.memory_saved_bytes, arm.memory_saved_pct
    if saved is None or share is None:
        return "-", ""
    _, ends = estimate(-share, sign=True)
    change = "0%" if saved.value == 0 else f"{'-' if saved.value > 0 else '+'}{percent(abs(share.value))}"
    interval = "" if ends is None else f"[{ends[0]}, {ends[1]}]%, "
    size = "" if saved.value == 0 else f"{num_bytes(abs(saved.value))} {'less' if saved.value > 0 else 'more'}"
    return change, _uncertainty(share, f"{interval}{size}")


def _uncertainty(of: Estimate, figures: str) -> str:
    n = f"exact, n={of.n}" if of.exact else f"n={of.n}"
    return f"{figures}, {n}" if figures else n


def parity(held: Parity | None) -> tuple[str, str]:
    """Gap of a final metric; then the interval that decides and the margin it is held against."""
    if held is None:
        return "-", ""
    mean = gap(held)
    value, ends = estimate(mean, digits=2, sign=True)
    interval = "" if ends is None else f"[{ends[0]}, {ends[1]}], "
    return value, _uncertainty(mean, f"{interval}margin ±{number(held.margin, 2)} in {metric_words(held.metric)}")
