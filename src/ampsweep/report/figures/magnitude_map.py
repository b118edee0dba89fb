"""The magnitudes of a run's tensors as a heat map: layers against exponents of two, with the ranges of the formats."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from ampsweep.analysis.headroom import (
    INITIAL_SCALE,
    SCALED,
    ExponentCounts,
    layer_text,
    scale_text,
)
from ampsweep.numeric_formats import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, NumericFormat
from ampsweep.record.numerics import Magnitudes, RunNumerics, TensorKind
from ampsweep.report.figure import Figure, Json, axis, heat, scatter
from ampsweep.report.palette import FORMAT_COLOURS
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.text import as_sentence, number, percent

_DRAWN: Final = (FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2)
_SHOWN_AT_FIRST: Final = (FLOAT16, BFLOAT16)
"""The others are drawn when their names in the legend are chosen."""
_ROW_PX: Final = 17
_LEAST_SHARE: Final = 1e-5
"""The axis begins and ends where this share of all elements is beyond it."""
MAX_ROWS: Final = 100
"""Layers that are drawn."""
_MAX_LABEL: Final = 34


def _short(name: str) -> str:
    """A layer's name, short enough for an axis: the middle is left out."""
    if len(name) <= _MAX_LABEL:
        return name or "(model)"
    head = _MAX_LABEL // 3
    return f"{name[:head]}…{name[head + 1 - _MAX_LABEL :]}"


def magnitude_map(numerics: RunNumerics, kind: TensorKind, *, title: str, question: str) -> Figure | None:
    """Draw the tensors of one kind: a row a layer, its colour the share of the elements with that exponent.

    Gradients are drawn with the scale of the run, if it has one: that is what the formats hold.
    """
    tensors = [one for one in numerics.magnitudes if one.kind == kind and any(one.counts)]
    if not tensors:
        return None
    scale = numerics.scale if kind in SCALED else None
    shift = 0 if scale is None else round(math.log2(scale))
    drawn = tensors[:MAX_ROWS]
    counts = [ExponentCounts.of([one]) for one in drawn]
    low, high = _ends(counts, shift)
    formats = [of for of in _DRAWN if low <= of.min_normal_exponent <= high or low <= of.max_exponent + 1 <= high]
    remarks = []
    if num_left := len(tensors) - len(drawn):
        remarks.append(f"the first {MAX_ROWS} layers are drawn, {num_left} more are in the table")
    if BFLOAT16 not in formats:
        remarks.append("the range of bfloat16 is wider than what is drawn")
    if kind in SCALED and scale is None:
        moved = round(math.log2(INITIAL_SCALE))
        remarks.append(f"without a scale; that of a scaler, {INITIAL_SCALE:,.0f}, moves all by {moved} to the right")
    step = 8 if high - low <= 64 else 16 if high - low <= 128 else 32
    scaled = "" if scale is None else f", times the scale {scale_text(scale)}"
    ticks = {float(at): f"2^{at}" for at in range(low, high + 1) if at % step == 0}
    labels = {float(place): _short(one.layer) for place, one in enumerate(drawn)}
    return Figure(
        key=kind,
        title=title,
        question=question,
        remarks=tuple(map(as_sentence, remarks)),
        table=_table(kind, tensors),
        traces=[
            _cells([one.layer or "(model)" for one in drawn], counts, shift, low, high),
            *(line for of in formats for line in _limits(of, len(drawn), low, high)),
        ],
        x=axis(f"magnitude{scaled}", range=(low, high), ticks=ticks),
        y=axis(range=(len(drawn) - 0.5, -0.5), ticks=labels),
        height=150 + max(_ROW_PX * len(drawn), 200),
        legend=True,
    )


def _ends(counts: Sequence[ExponentCounts], shift: int) -> tuple[int, int]:
    """The exponents between which nearly all elements are, and all that float16 holds."""
    together: Counter[int] = Counter()
    for one in counts:
        together.update({exponent + shift: count for exponent, count in one.counts.items()})
    least = _LEAST_SHARE * together.total()

    def first_beyond(exponents: Sequence[int]) -> int:
        passed = accumulate(together[exponent] for exponent in exponents)
        return next(exponent for exponent, before in zip(exponents, passed, strict=True) if before > least)

    ordered = sorted(together)
    low = min(first_beyond(ordered), FLOAT16.min_exponent - 2)
    return low, max(first_beyond(ordered[::-1]) + 1, FLOAT16.max_exponent + 3)


def _cells(names: Sequence[str], counts: Sequence[ExponentCounts], shift: int, low: int, high: int) -> Json:
    exponents = range(low, high)
    shares = [[one.counts.get(exponent - shift, 0) / one.total for exponent in exponents] for one in counts]
    texts = [[percent(100 * share) if share else "" for share in row] for row in shares]
    return heat([exponent + 0.5 for exponent in exponents], shares, texts, names)


def _limits(of: NumericFormat, num_rows: int, low: int, high: int) -> Iterator[Json]:
    """The limits of a format: full lines around its normal numbers, a dotted one where everything becomes zero."""
    full = [at for at in (float(of.min_normal_exponent), math.log2(of.max)) if low <= at <= high]
    zero = [at for at in (float(of.min_exponent - 1),) if low <= at <= high]
    is_hidden = {} if of in _SHOWN_AT_FIRST else {"visible": "legendonly"}
    for places, dash, name in ((full, "solid", of.name), (zero, "dot", f"{of.name}: below it zero")):
        if places:
            x = [x for at in places for x in (at, at, None)]
            y = [-0.5, num_rows - 0.5, None] * len(places)
            in_legend = places is full or not full
            more: Json = {"legendgroup": of.name, "showlegend": in_legend, **is_hidden}
            yield scatter(name, x, y, FORMAT_COLOURS[of.name], line=2, dash=dash, **more)


def _table(kind: str, tensors: Sequence[Magnitudes]) -> Table:
    headers = ("dtype", "largest", "zeros", "unchanged")
    rows = []
    for one in tensors:
        zeros_pct = 100 * one.num_zeros / max(one.num_elements, 1)
        shares = map(_share, (zeros_pct, one.unchanged_pct))
        rows.append(Row(tuple(map(Cell, (layer_text(one.layer), one.dtype, number(one.max_abs), *shares)))))
    columns = (Column("layer"), *(Column(header, numeric=True, optional=True) for header in headers))
    return Table(key=kind, columns=columns, rows=tuple(rows))


def _share(value: float | None) -> str:
    return "-" if not value else percent(value)
