"""The dashboard: everything that a document shows of a comparison, arranged once for all renderers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

from ampsweep.analysis.comparison import Comparison
from ampsweep.analysis.swept import Series
from ampsweep.report.extent import Extent, extent_of
from ampsweep.report.figure import Figure, NoFigure
from ampsweep.report.figures.bars import by_arm, chain, changes, stack
from ampsweep.report.figures.drawing import Style
from ampsweep.report.figures.lines import SeriesData, against, curves, effects_against
from ampsweep.report.figures.pairs import front, pairs
from ampsweep.report.histories import Histories
from ampsweep.report.palette import ArmStyle, arm_styles
from ampsweep.report.panels import PANELS, SEARCH_PANELS, Kind, Panel
from ampsweep.report.workload_data import Anything, ArmRuns, SearchData, WorkloadData

Data = TypeVar("Data")
Draw = Callable[[Panel, Data, Style], Figure | NoFigure]
"""Draws a kind of panel; the tables below are the one place that knows the kinds."""

OF_WORKLOAD: Final[dict[Kind, Draw[WorkloadData]]] = {
    "front": front,
    "curves": curves,
    "by_arm": by_arm,
    "chain": chain,
    "stack": stack,
    "changes": changes,
    "pairs": pairs,
}
"""Kinds that show one workload."""
OF_SEARCH: Final[dict[Kind, Draw[SearchData]]] = {"by_arm": by_arm, "stack": stack}
"""Kinds that show one search for the largest batches."""
OF_SERIES: Final[dict[Kind, Draw[SeriesData]]] = {"against": against, "effects_against": effects_against}
"""Kinds that show workloads beside each other."""


@dataclass(frozen=True)
class Panels(Generic[Data]):
    """Data with the panels that have something of it to show, and the reasons why the others have not."""

    data: Data
    shown: tuple[tuple[Panel, Figure], ...] = ()
    absent: tuple[tuple[Panel, str], ...] = ()


@dataclass(frozen=True)
class Dashboard:
    """A comparison with the panels drawn from its runs."""

    comparison: Comparison
    """With run directories as seen from the document."""
    workloads: tuple[Panels[WorkloadData], ...]
    """Without panels where they are not drawn (see `Extent`)."""
    searches: tuple[Panels[SearchData], ...]
    series: tuple[Panels[SeriesData], ...]
    """Panels over several workloads, for each series of sizes."""
    styles: dict[str, ArmStyle]
    extent: Extent

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for data in self.compared for run in data.runs})

    @property
    def drawn(self) -> tuple[Panels[WorkloadData], ...]:
        """The workloads that have panels: the first of very many."""
        return self.workloads[: self.extent.num_workloads]

    @property
    def compared(self) -> list[ArmRuns[Anything]]:
        """All workloads and searches that were compared, with their runs."""
        return [*(one.data for one in self.workloads), *(one.data for one in self.searches)]


def curve_keys(panels: Sequence[Panel] = PANELS) -> list[str]:
    """Metrics of the history that `panels` show."""
    return list(dict.fromkeys(key for panel in panels if panel.kind == "curves" for key in panel.metrics))


def arrange(
    comparison: Comparison, histories: Histories, directory: Path | None, panels: Sequence[Panel] = PANELS
) -> Dashboard:
    """Draw `panels` of a comparison.

    Args:
        comparison: as `compare` returned it.
        histories: of its runs, at least the metrics `curve_keys(panels)`.
        directory: where the document will lie, from which it names the runs' directories; None: they keep their names.
        panels: in the order in which they are shown within their sections.
    """
    keys = curve_keys(panels)
    named = comparison if directory is None else comparison.relative_to(directory)
    found = [WorkloadData(one, histories) for one in named.workloads]
    searches = [SearchData(one, histories) for one in named.searches]
    compared: list[ArmRuns[Anything]] = [*found, *searches]
    styles = arm_styles(arm for data in compared for arm in data.names)
    extent = extent_of(found, len(keys))
    style, drawn = Style(styles, extent), found[: extent.num_workloads]
    return Dashboard(
        comparison=named,
        workloads=(
            *(_drawn(data, _asked(panels, [data]), style, OF_WORKLOAD) for data in drawn),
            *map(Panels, found[len(drawn) :]),
        ),
        searches=tuple(_drawn(data, SEARCH_PANELS, style, OF_SEARCH) for data in searches),
        series=tuple(
            _drawn(data, _over(data.series, _asked(panels, data.data)), style, OF_SERIES)
            for one in comparison.series
            for data in [SeriesData(one, tuple(found[place] for place in one.workloads))]
        ),
        styles=styles,
        extent=extent,
    )


def _drawn(data: Data, panels: Iterable[Panel], style: Style, kinds: Mapping[Kind, Draw[Data]]) -> Panels[Data]:
    results = [(panel, kinds[panel.kind](panel, data, style)) for panel in panels if panel.kind in kinds]
    return Panels(
        data,
        tuple((panel, result) for panel, result in results if isinstance(result, Figure)),
        tuple((panel, result.reason) for panel, result in results if isinstance(result, NoFigure)),
    )


def _asked(panels: Sequence[Panel], of: Sequence[WorkloadData]) -> list[Panel]:
    """The panels without those of ranks, where no run had several."""
    has_ranks = any(run.record.ranks for data in of for run in data.runs)
    return [panel for panel in panels if has_ranks or not panel.of_ranks]


def _over(series: Series, panels: Sequence[Panel]) -> list[Panel]:
    """The panels over a series: of sizes, by the name of what was swept, or of words beside each other."""
    if not series.in_words:
        over_sizes = [panel for panel in panels if panel.over == "sizes"]
        return [replace(one, title=one.title.replace("against size", f"against {series.name}")) for one in over_sizes]
    return [
        one if one.beside is None else replace(one, title=one.beside[0], question=one.beside[1])
        for one in panels
        if one.over == "words" or one.beside is not None
    ]
