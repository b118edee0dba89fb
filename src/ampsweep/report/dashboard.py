"""The dashboard: everything that a document shows of a comparison, arranged once for all renderers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ampsweep.analysis.comparison import Comparison
from ampsweep.analysis.swept import Series
from ampsweep.record import RunRecord
from ampsweep.report.extent import Extent, extent_of
from ampsweep.report.figure import Figure, NoFigure
from ampsweep.report.figures import (
    ACROSS_WORKLOADS,
    OF_SEARCH,
    OF_WORKLOAD,
    SeriesData,
    Style,
)
from ampsweep.report.histories import Histories
from ampsweep.report.numerics_shown import WorkloadNumerics, numerics_of
from ampsweep.report.palette import ArmStyle, arm_styles
from ampsweep.report.panels import PANELS, SEARCH_PANELS, Panel
from ampsweep.report.workload_data import ArmRuns, SeamData, SearchData, WorkloadData, compared_data

PanelShown = tuple[Panel, Figure]


@dataclass(frozen=True)
class WorkloadPanels:
    """One workload: the panels that have something to show, and the reasons why the others have not.

    None of either for a workload that is not drawn (see `Extent`).
    """

    data: WorkloadData
    shown: tuple[PanelShown, ...]
    absent: tuple[tuple[Panel, str], ...]


@dataclass(frozen=True)
class SearchPanels:
    """One search for the largest batches, and its panels."""

    data: SearchData
    shown: tuple[PanelShown, ...]


@dataclass(frozen=True)
class SeriesPanels:
    """One series of sizes: the panels that have something to show over it, and the reasons why the others have not."""

    data: SeriesData
    shown: tuple[PanelShown, ...]
    absent: tuple[tuple[Panel, str], ...]


@dataclass(frozen=True)
class Dashboard:
    """A comparison with the panels drawn from its runs."""

    comparison: Comparison
    """With run directories as seen from the document."""
    workloads: tuple[WorkloadPanels, ...]
    searches: tuple[SearchPanels, ...]
    seams: tuple[SeamData, ...]
    series: tuple[SeriesPanels, ...]
    """Panels over several workloads, for each series of sizes."""
    numerics: tuple[WorkloadNumerics, ...]
    """The workloads with runs that looked at their numerics, of those that are drawn."""
    styles: dict[str, ArmStyle]
    extent: Extent

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs."""
        return sorted({run.seed for data in self.compared for run in data.runs})

    @property
    def drawn(self) -> tuple[WorkloadPanels, ...]:
        """The workloads that have panels: the first of very many."""
        return self.workloads[: self.extent.num_workloads]

    @property
    def compared(self) -> list[ArmRuns]:
        """All workloads, searches and seams that were compared, with their runs."""
        return [*(one.data for one in self.workloads), *(one.data for one in self.searches), *self.seams]


def curve_keys(panels: Sequence[Panel] = PANELS) -> list[str]:
    """Metrics of the history that `panels` show."""
    return list(dict.fromkeys(key for panel in panels if panel.kind == "curves" for key in panel.metrics))


def arrange(
    comparison: Comparison,
    records: Sequence[tuple[Path, RunRecord]],
    histories: Histories,
    directory: Path | None,
    panels: Sequence[Panel] = PANELS,
) -> Dashboard:
    """Draw `panels` of a comparison.

    Args:
        comparison: as `compare` returned it for `records`.
        records: run directories with their records.
        histories: of these runs, at least the metrics `curve_keys(panels)`.
        directory: where the document will lie, from which it names the runs' directories; None: they keep their names.
        panels: in the order in which they are shown within their sections.
    """
    keys = curve_keys(panels)
    found, searches, seams = compared_data(comparison, records, histories, directory)
    styles = arm_styles(arm for data in [*found, *searches, *seams] for arm in data.names)
    extent = extent_of(found, len(keys))
    style = Style(styles, extent)
    named = comparison if directory is None else comparison.relative_to(directory)
    return Dashboard(
        comparison=named,
        workloads=(
            *(_of_workload(data, panels, style) for data in found[: extent.num_workloads]),
            *(WorkloadPanels(data, (), ()) for data in found[len(found[: extent.num_workloads]) :]),
        ),
        searches=tuple(_of_search(data, style) for data in searches),
        seams=tuple(seams),
        series=tuple(
            _of_series(SeriesData(one, tuple(found[place] for place in one.workloads)), panels, style)
            for one in comparison.series
        ),
        numerics=numerics_of(found[: extent.num_workloads]),
        styles=styles,
        extent=extent,
    )


def _of_workload(data: WorkloadData, panels: Sequence[Panel], style: Style) -> WorkloadPanels:
    shown: list[PanelShown] = []
    absent: list[tuple[Panel, str]] = []
    for panel in _asked(panels, [data]):
        if panel.kind in OF_WORKLOAD:
            result = OF_WORKLOAD[panel.kind](panel, data, style)
            if isinstance(result, NoFigure):
                absent.append((panel, result.reason))
            else:
                shown.append((panel, result))
    return WorkloadPanels(data, tuple(shown), tuple(absent))


def _of_search(data: SearchData, style: Style) -> SearchPanels:
    results = [(panel, OF_SEARCH[panel.kind](panel, data, style)) for panel in SEARCH_PANELS]
    return SearchPanels(data, tuple((panel, result) for panel, result in results if isinstance(result, Figure)))


def _of_series(data: SeriesData, panels: Sequence[Panel], style: Style) -> SeriesPanels:
    results = [
        (panel, ACROSS_WORKLOADS[panel.kind](panel, data, style))
        for panel in _over(data.series, _asked(panels, data.data))
    ]
    return SeriesPanels(
        data,
        tuple((panel, result) for panel, result in results if isinstance(result, Figure)),
        tuple((panel, result.reason) for panel, result in results if isinstance(result, NoFigure)),
    )


def _asked(panels: Sequence[Panel], of: Sequence[WorkloadData]) -> list[Panel]:
    """The panels without those of ranks, where no run had several."""
    has_ranks = any(run.record.ranks for data in of for run in data.runs)
    return [panel for panel in panels if has_ranks or not panel.of_ranks]


def _over(series: Series, panels: Sequence[Panel]) -> list[Panel]:
    """The panels over a series: of sizes, or with other titles of words beside each other."""
    across = [panel for panel in panels if panel.kind in ACROSS_WORKLOADS]
    if not series.in_words:
        return [panel for panel in across if panel.over_sizes]
    return [replace(one, title=one.beside[0], question=one.beside[1]) for one in across if one.beside is not None]
