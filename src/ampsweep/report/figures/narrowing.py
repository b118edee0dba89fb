"""Panels of a planned number of pairs: an effect with its interval after each pair of runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ampsweep.analysis.candidates import Candidate
from ampsweep.analysis.pairing import in_order_of_completion
from ampsweep.analysis.sequential import CONFIDENCE_OF_LOOKS
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, mean_ratio
from ampsweep.report.figure import Figure, Json, area, axis, margin, rule, scatter
from ampsweep.report.figures.drawing import panel_figure, without
from ampsweep.report.figures.pairs import EffectOf, effect_of, mean_cell, parity_of
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.report.workload_data import WorkloadData

_MAX_TICKS: Final = 12
_AROUND: Final = 0.15  # share of the range of the means above and below it
_LEAST_ROOM: Final = 0.05  # a speedup's, around arms that are as fast


def narrowing(panel: Panel, data: WorkloadData, styles: Mapping[str, ArmStyle]) -> Figure | None:
    """A line for each arm through its mean after each pair, with the band of its interval.

    None unless a number of pairs is planned and some arm has more than the least.
    """
    of, arms = effect_of(panel), data.compared.verdict.arms
    every = {arm.arm: [*_looks(panel, of, arm)] for arm in arms}
    looks = {arm: found for arm, found in every.items() if found}
    if data.max_pairs is None or max(map(len, looks.values()), default=0) < 2:
        return None
    margins = [parity.margin for arm in arms if (parity := parity_of(panel, arm)) is not None]
    numbers = sorted({look.n for found in looks.values() for look in found})
    missing = [arm for arm in data.measured_arms if arm in every and arm not in looks]
    return panel_figure(
        panel,
        without(missing, f"fewer than {MIN_PAIRS} pairs to compare"),
        traces=[trace for arm, found in looks.items() for trace in _line(arm, found, of, styles[arm])],
        x=axis("pairs of runs", ticks={n: str(n) for n in numbers[:: -(-len(numbers) // _MAX_TICKS)]}),
        y=axis(of.title, of.unit, range=_shown(looks.values(), of.null, max(margins, default=0.0))),
        shapes=[rule(of.null, "y"), *([margin(-max(margins), max(margins))] if margins else [])],
        legend=True,
        height=360,
        table=_table(panel, of, looks, numbers),
    )


def _looks(panel: Panel, of: EffectOf, arm: Candidate) -> Iterator[Estimate]:
    """The effect after each pair from the least number on, as the verdict had it or would have had it."""
    if panel.effect == "loss_gap":
        parity = parity_of(panel, arm)
        yield from () if parity is None else parity.looks
        return
    assert panel.effect == "speedup", panel.effect
    both = [figures for pair in in_order_of_completion(arm.pairs) if (figures := pair.figures(of.metric)) is not None]
    both = [figures for figures in both if min(figures) > 0]
    for n in range(MIN_PAIRS, len(both) + 1):
        if (mean := mean_ratio(both[:n], CONFIDENCE_OF_LOOKS)) is not None:
            yield mean


def _shown(looks: Iterable[Sequence[Estimate]], null: float, margin: float) -> tuple[float, float]:
    """The ends of an axis with all means, no effect, the margin, and the last intervals unless those would dwarf it."""
    means = [look.value for found in looks for look in found] + [null - margin, null + margin]
    low, high = min(means), max(means)
    room = max(high - low, _LEAST_ROOM * null)
    ends = [end for found in looks for end in _ends(found[-1]) if low - room <= end <= high + room] + means
    around = _AROUND * room
    return min(ends) - around, max(ends) + around


def _ends(of: Estimate) -> tuple[float, float]:
    return of.interval or (of.value, of.value)


def _line(arm: str, looks: Sequence[Estimate], of: EffectOf, look: ArmStyle) -> Iterator[Json]:
    x, meta = [each.n for each in looks], {"arm": arm}
    low, high = zip(*map(_ends, looks), strict=True)
    yield from area(x, low, high, look.colour, legendgroup=arm, meta=meta)
    cells = [mean_cell(each, of) for each in looks]
    yield scatter(
        arm,
        x,
        [each.value for each in looks],
        look.colour,
        line=2 + 0.8 * look.beneath,
        dash=look.dash,
        symbol=look.symbol,
        hover=[f"{n} pairs: {cell.text} {cell.detail}".strip() for n, cell in zip(x, cells, strict=True)],
        legendgroup=arm,
        meta=meta,
    )


def _table(panel: Panel, of: EffectOf, looks: Mapping[str, Sequence[Estimate]], numbers: Sequence[int]) -> Table:
    cells = {arm: {look.n: mean_cell(look, of) for look in found} for arm, found in looks.items()}
    rows = (Row((Cell(str(n), n), *(found.get(n, Cell()) for found in cells.values()))) for n in numbers)
    columns = (Column("pairs", numeric=True), *(Column(arm, numeric=True) for arm in looks))
    return Table(key=panel.key, columns=columns, rows=tuple(rows))
