"""Series of sizes in words: what was varied, what multiples of 8 gain, and what another strategy changes."""

from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.reasons import MULTIPLE
from ampsweep.analysis.size_series import MAX_NEIGHBOUR_DISTANCE, MultipleEffect, SizeSeries, is_multiple
from ampsweep.analysis.size_steps import Size, SizeStep
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate
from ampsweep.report.estimate_text import estimate, ratio_estimate, ratio_figure
from ampsweep.report.sentences.explaining import TOO_SMALL
from ampsweep.text import num_bytes, percent

_NAMES: Final = {
    "batch_size": "batch size",
    "seq_len": "sequence length",
    "grad_accum_steps": "micro-batches a step",
    "world_size": "number of ranks",
    "parallel": "strategy",
}


def size_name(series: SizeSeries) -> str:
    """The size that was varied: in words, or its config key."""
    return _NAMES.get(series.key, series.key)


def size_text(size: Size) -> str:
    """A size as it stands in a config."""
    return f"{size:g}" if isinstance(size, float) else str(size)


def series_heading(series: SizeSeries) -> str:
    """Name what was varied, and what tells the series from others of that size."""
    told = ", ".join(f"{key} {value}" for key, value in series.varied.items() if value is not None)
    kind = f"Each {size_name(series)} beside the others" if series.in_words else f"Against {size_name(series)}"
    return kind + (f" ({told})" if told else "")


def section_heading(series: Sequence[SizeSeries]) -> str:
    """The heading over all series."""
    kinds = {one.in_words for one in series}
    return "Side by side" if kinds == {True} else "Against size" if kinds == {False} else "Against size, side by side"


def series_lines(series: SizeSeries) -> list[str]:
    """Say what multiples of 8 or another strategy gain each arm, as far as that is decided, and what else to know."""
    lines = [_step(one) for one in series.steps]
    lines += [line for arm in dict.fromkeys(one.arm for one in series.effects) for line in _multiples(arm, series)]
    beside = {one.size for one in series.effects}
    alone = [size for size in _numbers(series) if size > MULTIPLE and not is_multiple(size) and size not in beside]
    if alone:
        lines.append(
            f"What multiples of {MULTIPLE} gain cannot be decided at {_listed(alone)}: none within "
            f"{100 * MAX_NEIGHBOUR_DISTANCE:.0f}% was measured beside {'it' if len(alone) == 1 else 'them'}"
        )
    if series.too_small:
        lines.append(f"{TOO_SMALL[:1].upper()}{TOO_SMALL[1:]} at {_listed(series.too_small)}")
    if series.along:
        verb = "changes" if len(series.along) == 1 else "change"
        lines.append(f"With {size_name(series)} {', '.join(series.along)} {verb}, too")
    return lines


def step_cells(one: SizeStep) -> tuple[str, str, str]:
    """Throughput, memory saved and loss gap of an arm against the first word, as cells without their intervals."""
    saved = one.memory_saved_pct
    gap = one.loss_gap
    return (
        "-" if one.throughput is None else f"{ratio_estimate(one.throughput)[0]}x",
        "-" if saved is None else percent(saved.value),
        "-" if gap is None else _signed(gap)[0],
    )


def _step(one: SizeStep) -> str:
    """Say what an arm gains and loses there: samples a second, memory of the fullest rank, final loss."""
    saved = one.memory_saved_bytes
    told = [
        None if one.throughput is None else f"{ratio_figure(one.throughput)} the samples a second",
        None if saved is None or one.memory_saved_pct is None else _memory(saved, one.memory_saved_pct),
        None if one.loss_gap is None else f"val loss gap {''.join(_signed(one.loss_gap))}",
    ]
    known = [clause for clause in told if clause is not None] or ["no figures to compare"]
    num_pairs = max((of.n for of in (one.throughput, saved, one.loss_gap) if of is not None), default=0)
    differing = "" if one.same_samples else "; its steps have another number of samples, so losses are not compared"
    first = size_text(one.first) if one.first_arm == one.arm else f"{one.first_arm} of {size_text(one.first)}"
    named = f"{one.arm}: {size_text(one.size)} against {first}"
    return f"{named}, {', '.join(known)} (n={num_pairs}){differing}"


def _memory(saved: Estimate, pct: Estimate) -> str:
    if saved.value == 0:
        return "the same peak of the fullest rank"
    kind = "less" if saved.value > 0 else "more"
    return f"{num_bytes(abs(saved.value))} {kind} on the fullest rank ({percent(abs(pct.value))})"


def _signed(gap: Estimate) -> tuple[str, str]:
    """The gap and its interval."""
    if gap.value == 0 and (gap.exact or gap.n == 1):
        return "0", ""
    value, ends = estimate(gap, digits=2, sign=True)
    return value, "" if ends is None else f" [{ends[0]}, {ends[1]}]"


def _numbers(series: SizeSeries) -> list[float]:
    return [size for size in series.sizes if not isinstance(size, str)] if series.of_tensors else []


def multiple_cells(series: SizeSeries) -> list[str]:
    """For each size the cell of a table that tells multiples of 8; none where all are, or none is."""
    kinds = [is_multiple(size) for size in _numbers(series)]
    return ["yes" if one else "no" for one in kinds] if len({*kinds}) > 1 else []


def marker_note(series: SizeSeries) -> str | None:
    """The key to markers; None where every size is a multiple of 8, or none is."""
    kinds = {is_multiple(size) for size in _numbers(series)}
    return None if len(kinds) < 2 else f"open: no multiple of {MULTIPLE}"


def out_of_memory_there(arm: str, series: SizeSeries, sizes: Sequence[Size]) -> str:
    """Say at which sizes an arm's runs ran out of memory."""
    where = ", ".join(size_text(size) for size in series.sizes if size in sizes)
    return f"{arm} ran out of memory at {size_name(series)} {where} (x)"


def _multiples(arm: str, series: SizeSeries) -> list[str]:
    found = [one for one in series.effects if one.arm == arm]
    lines = [
        f"{arm} at {size_text(one.size)} has {_share(one)} of the speedup at {size_text(one.multiple)} "
        f"(n={one.num_seeds})"
        for one in found
        if one.undecided is None
    ]
    undecided = [f"at {size_text(one.size)} ({_why(one)})" for one in found if one.undecided is not None]
    if undecided:
        lines.append(f"{arm}: what multiples of {MULTIPLE} gain cannot be decided {_either(undecided)}")
    return lines


def _share(one: MultipleEffect) -> str:
    assert one.ratio is not None, one
    value, ends = ratio_estimate(one.ratio)
    return value + ("" if ends is None else f" [{ends[0]}, {ends[1]}]")


def _why(one: MultipleEffect) -> str:
    there = size_text(one.multiple)
    match one.undecided:
        case "too small":
            return f"a step there or at {there} is too small to judge speed by"
        case "no figures":
            return f"no seed has a speed there and at {there}"
        case "too few seeds":
            return f"n={one.num_seeds} with {there}, and {MIN_PAIRS} are needed"
        case _:
            assert one.ratio is not None, one
            return f"{ratio_figure(one.ratio)} of the speedup at {there}, n={one.num_seeds}"


def _listed(sizes: Sequence[Size]) -> str:
    return ", ".join(size_text(size) for size in sizes)


def _either(clauses: Sequence[str]) -> str:
    *first, last = clauses
    return f"{', '.join(first)} or {last}" if first else last
