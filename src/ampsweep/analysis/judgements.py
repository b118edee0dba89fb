"""What the figures of one arm say about speed, memory and learning: a word each, and what it stands on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.estimate_text import estimate, ratio_figure
from ampsweep.analysis.parity import Parity, overall_parity
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate
from ampsweep.text import num_bytes, percent, plural, ratio

SpeedWord = Literal["faster", "slower", "unresolved", "same", "too few pairs", "not measured"]
MemoryWord = Literal["saves", "adds", "unresolved", "same", "too few pairs", "not measured"]
ParityWord = Literal["equivalent", "better", "worse", "inconclusive", "not measured"]

Word = TypeVar("Word", SpeedWord, MemoryWord)


@dataclass(frozen=True, kw_only=True)
class Judgements:
    """One arm against the baseline: a word for a badge, and a line that says it with its figures and n.

    `unresolved`: the 95% interval does not tell the figure from no difference. `too few pairs`: there is no interval.
    """

    speed: SpeedWord
    speed_text: str
    memory: MemoryWord
    memory_text: str
    parity: ParityWord
    parity_text: str
    summary: str
    """All three in one clause; an n only where it is not that of the completed pairs."""
    brief: str
    """The same without intervals."""

    @property
    def lines(self) -> tuple[str, str, str]:
        """Speed, memory, parity."""
        return self.speed_text, self.memory_text, self.parity_text


def judge(arm: ArmComparison, baseline: ArmComparison, parities: Sequence[Parity]) -> Judgements:
    """Judge an arm that is not the baseline; `parities` has its final metrics."""
    n = arm.num_completed_pairs
    contaminated = _contaminated(arm, baseline)
    speed, memory = _speed(arm.speedup, contaminated), _memory(arm.memory_saved_bytes, arm.memory_saved_pct)
    clauses = [
        speed.figure + _speed_n(arm, contaminated),
        memory.figure + _other_n(arm.memory_saved_bytes, n),
        *(f"{parity.short}{_other_n(parity, n)}" for parity in parities),
    ]
    learned = [_brief_parity(parity) for parity in parities]
    none = "no final loss to compare"
    return Judgements(
        speed=speed.word,
        speed_text=speed.figure + (_speed_n(arm, contaminated) if contaminated else _n(arm.speedup)),
        memory=memory.word,
        memory_text=f"{memory.figure}{_n(arm.memory_saved_bytes)}",
        parity=overall_parity(parities) or "not measured",
        parity_text="; ".join(map(_parity_line, parities)) or none,
        summary=", ".join(clauses if parities else [*clauses, none]),
        brief=", ".join([speed.brief, memory.brief, *(learned or [none])]),
    )


@dataclass(frozen=True)
class _Judged(Generic[Word]):
    word: Word
    figure: str
    brief: str


def _speed(speedup: Estimate | None, contaminated: str) -> _Judged[SpeedWord]:
    if speedup is None:
        text = f"speed not {'compared' if contaminated else 'measured'}"
        return _Judged("not measured", text, text)
    figure, brief = f"{ratio_figure(speedup)} the speed", f"{ratio(speedup.value)} the speed"
    if speedup.n < MIN_PAIRS:
        return _Judged("too few pairs", figure, brief)
    if speedup.resolves(1.0):
        return _Judged("faster" if speedup.value > 1 else "slower", figure, brief)
    if speedup.exact:
        return _Judged("same", "the same speed", "the same speed")
    return _Judged(
        "unresolved", f"no resolved speed difference, {ratio_figure(speedup)}", "no resolved speed difference"
    )


def _memory(saved: Estimate | None, share: Estimate | None) -> _Judged[MemoryWord]:
    if saved is None or share is None:
        return _Judged("not measured", "memory not measured", "memory not measured")
    if saved.value == 0 and saved.exact:
        return _Judged("same", "the same peak memory", "the same peak memory")
    word: MemoryWord = "saves" if saved.value > 0 else "adds"
    size, part = (saved, share) if saved.value > 0 else (-saved, -share)
    _, ends = estimate(part)
    spread = "" if ends is None else f" [{ends[0]}, {ends[1]}]"
    figure = f"{word} {num_bytes(size.value)} of peak memory ({percent(part.value)}{spread})"
    brief = f"{percent(part.value)} {'less' if saved.value > 0 else 'more'} peak memory"
    if saved.interval is None and not saved.exact:
        return _Judged("too few pairs", figure, brief)
    if saved.resolves(0.0):
        return _Judged(word, figure, brief)
    return _Judged("unresolved", f"no resolved memory difference, {figure}", "no resolved memory difference")


def _parity_line(of: Parity) -> str:
    return f"{of.name} {of.verdict}: {of.text}" + (f"; {of.settled_by}" if of.settled_by else "")


def _brief_parity(of: Parity) -> str:
    """Of an inconclusive one whether it may be worse, which is what matters for a choice."""
    if of.verdict != "inconclusive":
        return f"{of.name} {of.verdict}"
    return f"{of.name} not worse" if of.not_worse else f"parity of {of.name} open"


def _contaminated(arm: ArmComparison, baseline: ArmComparison) -> str:
    counts = [(one.num_contaminated, one.arm) for one in (arm, baseline) if one.num_contaminated]
    return " and ".join(plural(count, f"contaminated {label} run") for count, label in counts)


def _speed_n(arm: ArmComparison, contaminated: str) -> str:
    if not contaminated:
        return _other_n(arm.speedup, arm.num_completed_pairs)
    return f" ({contaminated})" if arm.speedup is None else f" (n={arm.speedup.n}, without {contaminated})"


def _n(of: Estimate | None) -> str:
    return "" if of is None else f", n={of.n}"


def _other_n(of: Estimate | Parity | None, n: int) -> str:
    return "" if of is None or of.n == n else f" (n={of.n})"
