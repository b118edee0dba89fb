"""The verdict in a sentence: an answer with rounded figures, whose intervals, n and margins stand in the evidence."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ampsweep.analysis.candidates import Candidate, Refusal, SpeedDisturbed, TooFewPairs, Unsupported, Worse, is_known
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.recommendation import Recommendation, Rivals
from ampsweep.text import listed, number, plural

_MAX_OTHERS: Final = 2
_LEAST_PCT: Final = 0.5  # smaller differences of memory are about none


def headline(of: Recommendation, arms: Sequence[Candidate], place: str) -> str:
    """The answer, without a full stop. `place`: where its speeds hold, 'on this CPU'."""
    by_name = {arm.arm: arm for arm in arms}
    if isinstance(of.undecided, Rivals):
        return _open(of.undecided, by_name, place)
    if of.undecided is not None:
        return of.undecided.filled(f"{of.undecided.sentence}; {of.undecided.remedy}")
    if of.arm == of.baseline:
        return f"Stay with {of.baseline}: {_against(arms, place)}"
    why = f"; {of.baseline} {_out(of.baseline_refusal)}" if of.baseline_refusal else ""
    return f"Train this in {of.arm}: {known(by_name[str(of.arm)].judgements, place)}{why}"


def _open(of: Rivals, arms: Mapping[str, Candidate], place: str) -> str:
    """What is known of the first arm that may be better, what is not, and what would probably decide it."""
    first, *others = of.arms
    missing = [what for what in of.missing if what.arm == first]
    figures = "" if isinstance(missing[0], TooFewPairs) else known(arms[first].judgements, place)
    text = f"{first}: {_joined('; ', figures, *(what.sentence for what in missing))}"
    if others:
        text += f" ({listed(others)} {'is' if len(others) == 1 else 'are'} open, too)"
    if of.leader not in (None, of.baseline):
        text = f"So far train this in {of.leader}: {known(arms[str(of.leader)].judgements, place)}. {text}"
    if any(what.needs_longer for what in of.missing):
        return f"{text}. Longer trainings may decide it"
    if not of.num_seeds:
        return missing[0].filled(f"{text}. To decide it, {missing[0].remedy}")
    where = " on an idle machine" if any(isinstance(what, SpeedDisturbed) for what in of.missing) else ""
    seeds = f"{plural(of.num_seeds, 'more seed')}{where}"
    is_first = where and len(of.missing) > len(of.arms)
    return f"{text}. Run {seeds} first" if is_first else f"{text}. {seeds} should decide it"


def _against(arms: Iterable[Candidate], place: str) -> str:
    """Why no arm is better than the baseline, the fastest first; of arms that cannot run here only if all are."""
    others = sorted(arms, key=lambda arm: (arm.refusal is not None, -(_factor(arm.judgements) or 0.0)))
    others = [arm for arm in others if not isinstance(arm.refusal, Unsupported)] or others
    first, *more = (f"{arm.arm} {_out(arm.refusal) if arm.refusal else _behind(arm.judgements)}" for arm in others)
    if others[0].refusal is None:
        rest = _joined(" and ", _memory(others[0].judgements), _learnt(others[0].judgements))
        first = _joined(", with ", f"{place} {first}".strip(), rest)
    unsaid = len(more) - _MAX_OTHERS
    return "; ".join([first, *more[:_MAX_OTHERS]]) + (f"; {unsaid} more are no better" if unsaid > 0 else "")


def _behind(of: Judgements) -> str:
    factor = _factor(of)
    if factor is not None and of.speed == "slower":
        return f"takes {number(1 / factor)}x as long a step"
    return f"is {_speed(of) or 'no faster'}"


def _out(refusal: Refusal) -> str:
    worse = f"learns worse, by {refusal.parity.size}" if isinstance(refusal, Worse) else ""
    return worse or f"is refused: {refusal.sentence}"


def known(of: Judgements, place: str = "") -> str:
    """What is decided of an arm: '22% less memory, as good a loss; on this CPU 0.98x as fast'."""
    speed = _speed(of)
    return _joined("; ", _joined(", ", _memory(of), _learnt(of)), f"{place} {speed}".strip() if speed else "")


def _factor(of: Judgements) -> float | None:
    speedup = of.figures.speedup
    return speedup.value if of.figures.disturbed_step_ms is None and speedup is not None and is_known(speedup) else None


def _speed(of: Judgements) -> str:
    if (factor := _factor(of)) is None:
        return ""
    about = {"same": "as fast", "unresolved": "about as fast"}
    return about.get(of.speed, f"{number(factor, 3 if factor >= 1 else 2)}x as fast")


def _memory(of: Judgements) -> str:
    saved = of.figures.memory_saved_pct
    if saved is None:
        return ""
    if of.memory == "unresolved":
        return "no clear difference in memory"
    if abs(saved.value) < _LEAST_PCT:
        return "about the same memory" if saved.value else "the same memory"
    return f"{number(abs(saved.value), 2)}% {'less' if saved.value > 0 else 'more'} memory"


def _learnt(of: Judgements) -> str:
    tested = next((parity for parity in of.parities if parity.verdict == of.parity), None)
    if tested is None or not all(parity.not_worse for parity in of.parities):
        return ""
    article = "an" if tested.noun[0] in "aeiou" else "a"
    words = {"better": f"{article} better", "equivalent": f"as good {article}"}
    return f"{words.get(tested.verdict, f'no worse {article}')} {tested.noun}"


def _joined(between: str, *parts: str) -> str:
    return between.join(filter(None, parts))
