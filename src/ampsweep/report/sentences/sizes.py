"""Series of sizes in words: what was varied, and what multiples of 8 gain."""

from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.reasons import MULTIPLE
from ampsweep.analysis.size_series import MAX_NEIGHBOUR_DISTANCE, MultipleEffect, SizeSeries, is_multiple
from ampsweep.analysis.statistics import MIN_PAIRS
from ampsweep.report.estimate_text import ratio_estimate, ratio_figure
from ampsweep.report.sentences.explaining import TOO_SMALL

_NAMES: Final = {
    "batch_size": "batch size",
    "seq_len": "sequence length",
    "grad_accum_steps": "micro-batches a step",
}


def size_name(series: SizeSeries) -> str:
    """The size that was varied: in words, or its config key."""
    return _NAMES.get(series.key, series.key)


def size_text(size: float) -> str:
    """A size as it stands in a config."""
    return str(size) if isinstance(size, int) else f"{size:g}"


def series_heading(series: SizeSeries) -> str:
    """Name what was varied, and what tells the series from others of that size."""
    told = ", ".join(f"{key} {value}" for key, value in series.varied.items() if value is not None)
    return f"Against {size_name(series)}" + (f" ({told})" if told else "")


def series_lines(series: SizeSeries) -> list[str]:
    """Say what multiples of 8 gain each arm, as far as the figures decide it, and what else to know of the sizes."""
    lines = [line for arm in dict.fromkeys(one.arm for one in series.effects) for line in _multiples(arm, series)]
    beside = {one.size for one in series.effects}
    alone = [size for size in series.sizes if size > MULTIPLE and not is_multiple(size) and size not in beside]
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


def multiple_cells(series: SizeSeries) -> list[str]:
    """For each size the cell of a table that tells multiples of 8; none where all are, or none is."""
    kinds = [is_multiple(size) for size in series.sizes]
    return ["yes" if one else "no" for one in kinds] if len({*kinds}) > 1 else []


def marker_note(series: SizeSeries) -> str | None:
    """The key to markers; None where every size is a multiple of 8, or none is."""
    kinds = {is_multiple(size) for size in series.sizes}
    return None if len(kinds) < 2 else f"open: no multiple of {MULTIPLE}"


def out_of_memory_there(arm: str, series: SizeSeries, sizes: Sequence[float]) -> str:
    """Say at which sizes an arm's runs ran out of memory."""
    where = ", ".join(size_text(size) for size in sorted({*sizes}))
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


def _listed(sizes: Sequence[float]) -> str:
    return ", ".join(size_text(size) for size in sizes)


def _either(clauses: Sequence[str]) -> str:
    *first, last = clauses
    return f"{', '.join(first)} or {last}" if first else last
