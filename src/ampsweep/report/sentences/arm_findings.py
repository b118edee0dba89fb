"""Findings on an arm in words: its speed, memory and learning against the baseline, and how its runs ended."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ampsweep.analysis.arms import WithinRun
from ampsweep.analysis.equivalence import MAX_FURTHER_PAIRS
from ampsweep.analysis.goal import Objective
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.parity import Parity, ParityVerdict
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate
from ampsweep.analysis.step_limits import StepLimit
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.report.estimate_text import estimate, ratio_figure
from ampsweep.text import milliseconds, num_bytes, number, percent, plural, ratio, signed

_NO_LOSS: Final = "no final loss to compare"


def statuses(of: Mapping[str, int]) -> str:
    """Tell how runs ended: `completed` where every one did, else '2 completed, 1 failed'."""
    if len(of) == 1:
        return next(iter(of))
    return ", ".join(f"{count} {status}" for status, count in of.items())


def speed(of: Judgements) -> str:
    """The speed with its interval and n, what limits it, and how far it was checked."""
    n, runs = ("", _of_which_runs(of)) if of.contaminated else (_n(of.speedup), [])
    return _speed(of) + n + _in_brackets([*runs, *speed_remarks(of)])


def speed_remarks(of: Judgements) -> list[str]:
    """Clauses to stand beside a speed: what limits the arm's step, and of how many runs nothing tells who else ran."""
    if of.speedup is None:
        return []
    limited = [f"limited by {' and '.join(map(step_limit, of.limits))}"] if of.limits else []
    return limited + ([unchecked(of.num_unchecked, of.num_timed)] if of.num_unchecked else [])


def step_limit(of: StepLimit) -> str:
    """Name what limits a step, with its figure: 'launching operators, 8.0 us each'."""
    match of.kind:
        case "launching":
            if of.launch_ms is not None:
                return f"launching operators, {milliseconds(of.launch_ms)} of a step of {milliseconds(of.step_ms)}"
            return f"launching operators, {number(of.us_per_operator or 0, 2)} us each"
        case "data":
            share = f", {of.share_pct:.0f}% of it" if of.share_pct <= 100 else ""
            return f"waiting for data, {milliseconds(of.wait_ms)} a step on average{share}"
        case "host":
            return f"the host, as no kernel ran in {of.idle_pct:.0f}% of the time"


def unchecked(num_unchecked: int, num_timed: int) -> str:
    """Say that of so many of a speed's runs nothing tells whether anything else slowed them down."""
    share = "" if num_unchecked == num_timed else f" of {num_unchecked} of {plural(num_timed, 'run')}"
    return f"contamination{share} unknown"


def memory(of: Judgements) -> str:
    """Bytes of peak memory saved or added, with their share and n."""
    return _memory(of) + _n(of.memory_saved_bytes)


def parity(of: Judgements) -> str:
    """Each final metric with its verdict, what that stands on and what would settle it."""
    return "; ".join(map(_parity_line, of.parities)) or _NO_LOSS


def lines(of: Judgements) -> tuple[str, str, str]:
    """Speed, memory and parity."""
    return speed(of), memory(of), parity(of)


def summary(of: Judgements) -> str:
    """Speed, memory and parity in one clause; an n only if it differs from that of the completed pairs."""
    n = of.num_completed_pairs
    return ", ".join(
        [
            _speed(of) + _in_brackets([*_of_which_runs(of), *_remarks_in_short(of)]),
            _memory(of) + _other_n(of.memory_saved_bytes, n),
            *(f"{parity_short(one)}{_other_n(one, n)}" for one in of.parities),
            *([] if of.parities else [_NO_LOSS]),
        ]
    )


def brief(of: Judgements) -> str:
    """The same without intervals."""
    learned = [_brief_parity(one) for one in of.parities]
    fast = _brief_speed(of) + _in_brackets(_remarks_in_short(of))
    return ", ".join([fast, _brief_memory(of), *(learned or [_NO_LOSS])])


def metric_words(metric: str) -> str:
    """A metric's key in a sentence: 'val loss'."""
    return metric.replace("/", " ")


def parity_grounds(of: Parity) -> str:
    """The grounds of a verdict on parity, in a clause that follows it."""
    if not of.is_tested:
        gap = f"{signed(_factor(of) * of.gap, 2)}{_symbol(of)}"
        return f"gap {gap} in {plural(of.n, 'pair')}, at least {MIN_PAIRS} are needed"
    margin = f"±{number(_factor(of) * of.margin, 2)}{_symbol(of)}" + ("" if of.is_share else f" ({of.margin_pct:g}%)")
    places: dict[ParityVerdict, str] = {
        "equivalent": "inside",
        "worse": "below" if of.is_share else "above",
        "better": "above" if of.is_share else "below",
        "inconclusive": "crosses",
    }
    return f"gap {_gap(of)} {places[of.verdict]} {margin}, n={of.n}"


def parity_settled_by(of: Parity) -> str:
    """Say what would settle an inconclusive verdict, and how little these pairs could; empty for the others."""
    if of.verdict != "inconclusive" or not of.is_tested:
        return ""
    further = of.further_seeds
    seeds = f"about {plural(further, 'more seed')}" if further else f"more than {MAX_FURTHER_PAIRS} more seeds"
    chance = f"{100 * (of.power or 0):.0f}% of equal arms would be found equivalent"
    return f"{seeds} would settle it (with {of.n} and this spread, {chance})"


def parity_short(of: Parity) -> str:
    """Gap and verdict in a few words."""
    if of.gap == 0:
        return f"no {metric_words(of.metric)} gap"
    share = "" if of.is_share else f" ({signed(100 * of.gap / of.scale, 2)}%)"
    margin = f"{of.margin_pct:g}{_symbol(of) or '%'}"
    told = {"equivalent": f"equivalent within {margin}", "inconclusive": "parity inconclusive"}
    verdict = told.get(of.verdict, f"{of.verdict} by more than {margin}")
    return f"{metric_words(of.metric)} gap {signed(_factor(of) * of.gap, 2)}{_symbol(of)}{share}, {verdict}"


def time_to_loss(of: TimeToLoss) -> str:
    """Tell how much sooner than the baseline, and with how much energy, an arm reached its loss."""
    loss = f"the baseline's final {metric_words(of.metric)} (within {of.margin_pct:g}%)"
    if of.speedup is None:
        return f"reached {loss} in {of.num_reached} of {of.n} pairs"
    energy = "" if of.energy_ratio is None else f", with {ratio_figure(of.energy_ratio)} of its energy"
    return f"reached {loss} {ratio_figure(of.speedup)} as fast{energy} (n={of.n})"


def to_loss_brief(of: TimeToLoss, objective: Objective) -> str:
    """The time or energy up to the baseline's final loss in a few words, without interval."""
    name = f"its final {metric_words(of.metric)}"
    if of.speedup is None:
        return f"{name} not reached in every pair"
    if objective == "time":
        return f"{ratio(of.speedup.value)} as fast to {name}"
    return (
        f"{name} not reached" if of.energy_ratio is None else f"{ratio(of.energy_ratio.value)} of the energy to {name}"
    )


def within_run(of: WithinRun) -> str:
    """Tell how far the steps of a run spread, and how little that says."""
    share = percent(100 * of.step_ms_iqr / of.step_ms)
    return (
        f"step time within {plural(of.num_runs, 'run')}: IQR {milliseconds(of.step_ms_iqr)} ({share}), "
        f"p95 {milliseconds(of.step_ms_p95)}; it supports no verdict"
    )


def _speed(of: Judgements) -> str:
    if of.speedup is None:
        return _brief_speed(of)
    match of.speed:
        case "same":
            return "the same speed"
        case "unresolved":
            return f"no resolved speed difference, {ratio_figure(of.speedup)}"
        case _:
            return f"{ratio_figure(of.speedup)} the speed"


def _brief_speed(of: Judgements) -> str:
    if of.speedup is None:
        return f"speed not {'compared' if of.contaminated else 'measured'}"
    match of.speed:
        case "same":
            return "the same speed"
        case "unresolved":
            return "no resolved speed difference"
        case _:
            return f"{ratio(of.speedup.value)} the speed"


def _of_which_runs(of: Judgements) -> list[str]:
    """The n of the speed where it is not that of the completed pairs, and the contaminated runs that it lacks."""
    runs = " and ".join(plural(count, f"contaminated {arm} run") for arm, count in of.contaminated)
    if of.speedup is None:
        return [runs] if runs else []
    if runs:
        return [f"n={of.speedup.n}, without {runs}"]
    return [] if of.speedup.n == of.num_completed_pairs else [f"n={of.speedup.n}"]


def _remarks_in_short(of: Judgements) -> list[str]:
    """The remarks on a speed; none on launching where the workload as a whole is said to be too small."""
    limits = tuple(limit for limit in of.limits if limit.kind != "launching" or not of.workload_is_small)
    return speed_remarks(replace(of, limits=limits))


def _in_brackets(clauses: Sequence[str]) -> str:
    return f" ({'; '.join(clauses)})" if clauses else ""


def _memory(of: Judgements) -> str:
    saved, share = of.memory_saved_bytes, of.memory_saved_pct
    if saved is None or share is None or saved.value == 0:
        return _brief_memory(of)
    size, part = (saved, share) if saved.value > 0 else (-saved, -share)
    _, ends = estimate(part)
    spread = "" if ends is None else f" [{ends[0]}, {ends[1]}]"
    word = "saves" if saved.value > 0 else "adds"
    figure = f"{word} {num_bytes(size.value)} of peak memory ({percent(part.value)}{spread})"
    return f"no resolved memory difference, {figure}" if of.memory == "unresolved" else figure


def _brief_memory(of: Judgements) -> str:
    saved, share = of.memory_saved_bytes, of.memory_saved_pct
    if saved is None or share is None:
        return "memory not measured"
    if saved.value == 0 and of.memory != "unresolved":
        return "the same peak memory"
    match of.memory:
        case "unresolved":
            return "no resolved memory difference"
        case _:
            part, word = (share, "less") if saved.value > 0 else (-share, "more")
            return f"{percent(part.value)} {word} peak memory"


def _parity_line(of: Parity) -> str:
    settled_by = parity_settled_by(of)
    return f"{metric_words(of.metric)} {of.verdict}: {parity_grounds(of)}" + (f"; {settled_by}" if settled_by else "")


def _brief_parity(of: Parity) -> str:
    """A metric's verdict in a few words; of an inconclusive one they tell whether it may be worse."""
    name = metric_words(of.metric)
    if of.verdict != "inconclusive":
        return f"{name} {of.verdict}"
    return f"{name} not worse" if of.not_worse else f"parity of {name} open"


def _gap(of: Parity) -> str:
    if of.gap_sd == 0:
        return "of 0 in every pair," if of.gap == 0 else f"{signed(_factor(of) * of.gap)} in every pair,"
    assert of.low is not None, of
    assert of.high is not None, of
    mean, low, high = (_factor(of) * value for value in (of.gap, of.low, of.high))
    value, ends = estimate(Estimate(value=mean, n=of.n, low=low, high=high), digits=2, sign=True)
    assert ends is not None
    return f"{value}{_symbol(of)} [{ends[0]}, {ends[1]}]"


def _factor(of: Parity) -> float:
    """The factor for figures of a metric: shares are shown in percentage points."""
    return 100.0 if of.is_share else 1.0


def _symbol(of: Parity) -> str:
    return " pp" if of.is_share else ""


def _n(of: Estimate | None) -> str:
    return "" if of is None else f", n={of.n}"


def _other_n(of: Estimate | Parity | None, n: int) -> str:
    return "" if of is None or of.n == n else f" (n={of.n})"
