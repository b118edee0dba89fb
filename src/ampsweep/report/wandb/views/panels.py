"""The panels of the specification as panels of W&B."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ampsweep.metrics import STEP
from ampsweep.report.panels import SECTIONS, Kind, Panel, Section
from ampsweep.report.wandb.views.library import identified, wr
from ampsweep.report.wandb.views.marks import PREFIX

HEADINGS: Final[Mapping[Section, str]] = SECTIONS | {"learning": "Parity"}


def _curves(panel: Panel) -> Any:
    return wr.LinePlot(title=panel.title, x=STEP, y=list(panel.metrics), log_y=panel.log or None, title_y=_unit(panel))


def _bars(panel: Panel) -> Any:
    return wr.BarPlot(title=panel.title, metrics=list(panel.metrics), title_x=_unit(panel))


def _unit(panel: Panel) -> str | None:
    return panel.unit or None


def _by_seed(panel: Panel) -> Any:
    """W&B cannot compare pairs: it shows the two runs of each, one above the other."""
    return _dots(panel, f"{panel.title}: {panel.metrics[0]} by seed", "seed")


def _against_batch(panel: Panel) -> Any:
    return _dots(panel, panel.title, "batch_size")


def _dots(panel: Panel, title: str, key: str) -> Any:
    return wr.ScatterPlot(title=title, x=wr.Config(key), y=wr.SummaryMetric(panel.metrics[0]), log_y=panel.log or None)


_KINDS: Final[Mapping[Kind, Callable[[Panel], Any]]] = {
    "curves": _curves,
    "by_arm": _bars,
    "stack": _bars,
    "chain": _bars,
    "pairs": _by_seed,
    "against_batch": _against_batch,
}
"""The changes against a baseline are left out: W&B knows no baseline."""


def by_section(panels: Sequence[Panel]) -> dict[str, list[Any]]:
    """The panels of W&B under each heading that has any."""
    found = {
        heading: [_made(panel) for panel in panels if panel.section == section and panel.kind in _KINDS]
        for section, heading in HEADINGS.items()
    }
    return {heading: of_section for heading, of_section in found.items() if of_section}


def _made(panel: Panel) -> Any:
    return identified(_KINDS[panel.kind](panel), PREFIX + panel.key)
