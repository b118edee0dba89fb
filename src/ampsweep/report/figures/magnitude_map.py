"""A heat map of the magnitudes of a run's tensors: layers against powers of two, with the ranges of the formats."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ampsweep.analysis.headroom import INITIAL_SCALE, SCALED, ExponentCounts, layer_text, scale_text
from ampsweep.numeric_formats import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, NumericFormat
from ampsweep.records.numerics import Magnitudes, RunNumerics, TensorKind
from ampsweep.report.figure import Figure, Json, axis, heat, scatter
from ampsweep.report.palette import FORMAT_COLOURS
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.text import as_sentence, number, percent

_DRAWN: Final = (FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2)
_SHOWN_AT_FIRST: Final = (FLOAT16, BFLOAT16)  # the others are drawn when they are chosen in the legend
_ROW_PX: Final = 17
_LEAST_SHARE: Final = 1e-5  # the axis ends where less than this share of all elements is beyond it
MAX_ROWS: Final = 100
_MAX_LABEL: Final = 34


def _short(name: str) -> str:
    if len(name) <= _MAX_LABEL:
        return name or "(model)"
    head = _MAX_LABEL // 3
    return f"{name[:head]}…{name[head + 1 - _MAX_LABEL :]}"


def magnitude_map(numerics: RunNumerics, kind: TensorKind, *, title: str, question: str) -> Figure | None:
    """The tensors of one kind: a row for each layer, colours for the share of its elements with an exponent.

    Gradients are multiplied by the run's scale, if it has one, as in its backward pass.
    """
    tensors = [tensor for tensor in numerics.magnitudes if tensor.kind == kind and any(tensor.counts)]
    if not tensors:
        return None
    scale = numerics.scale if kind in SCALED else None
    shift = 0 if scale is None else round(math.log2(scale))
    drawn = tensors[:MAX_ROWS]
    counts = [ExponentCounts.of([tensor]) for tensor in drawn]
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
    labels = {float(place): _short(tensor.layer) for place, tensor in enumerate(drawn)}
    return Figure(
        key=kind,
        title=title,
        question=question,
        remarks=tuple(map(as_sentence, remarks)),
        table=_table(kind, tensors),
        traces=[
            _cells([tensor.layer or "(model)" for tensor in drawn], counts, shift, low, high),
            *(line for of in formats for line in _limits(of, len(drawn), low, high)),
        ],
        x=axis(f"magnitude{scaled}", range=(low, high), ticks=ticks),
        y=axis(range=(len(drawn) - 0.5, -0.5), ticks=labels),
        height=150 + max(_ROW_PX * len(drawn), 200),
        legend=True,
    )


def _ends(counts: Sequence[ExponentCounts], shift: int) -> tuple[int, int]:
    """The range of exponents that has nearly all elements and the whole range of float16."""
    together: Counter[int] = Counter()
    for tensor in counts:
        together.update({exponent + shift: count for exponent, count in tensor.counts.items()})
    exponents = sorted(together)
    up_to = np.cumsum([together[exponent] for exponent in exponents]) / together.total()
    first = exponents[np.searchsorted(up_to, _LEAST_SHARE, side="right")]
    last = exponents[np.searchsorted(up_to, 1 - _LEAST_SHARE)]
    return min(first, FLOAT16.min_exponent - 2), max(last + 1, FLOAT16.max_exponent + 3)


def _cells(names: Sequence[str], counts: Sequence[ExponentCounts], shift: int, low: int, high: int) -> Json:
    exponents = range(low, high)
    shares = [[tensor.counts.get(exponent - shift, 0) / tensor.total for exponent in exponents] for tensor in counts]
    texts = [[percent(100 * share) if share else "" for share in row] for row in shares]
    return heat([exponent + 0.5 for exponent in exponents], shares, texts, names)


def _limits(of: NumericFormat, num_rows: int, low: int, high: int) -> Iterator[Json]:
    """The limits of a format: solid lines around its normal numbers, a dotted line below which numbers become zero."""
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
    for tensor in tensors:
        zeros_pct = 100 * tensor.num_zeros / max(tensor.num_elements, 1)
        shares = ("-" if not share else percent(share) for share in (zeros_pct, tensor.unchanged_pct))
        rows.append(Row(tuple(map(Cell, (layer_text(tensor.layer), tensor.dtype, number(tensor.max_abs), *shares)))))
    columns = (Column("layer"), *(Column(header, numeric=True, optional=True) for header in headers))
    return Table(key=kind, columns=columns, rows=tuple(rows))
