"""The panels of a comparison as live panels of W&B, made by the optional package wandb-workspaces.

What of that package is not public is used here and nowhere else: `_to_model`, the one way to see what a page would
save, and the `_id` of a panel or run set, by which it is found again.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # wandb-workspaces 0.4 uses pydantic's older validators
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

from ampsweep.metrics import STEP
from ampsweep.report.panels import SECTIONS, Kind, Panel, Section
from ampsweep.report.wandb.view_merge import PREFIX

__all__ = ["by_section", "expr", "identified", "saved_spec", "wr", "ws"]

HEADINGS: Final[Mapping[Section, str]] = SECTIONS | {"learning": "Parity"}

T = TypeVar("T")


def identified(part: T, id: str) -> T:
    """The panel or run set `part`, with an id of our own."""
    part._id = id  # type: ignore[attr-defined]
    return part


def saved_spec(page: "ws.Workspace | wr.Report") -> dict[str, Any]:
    """The JSON that would be saved of `page`."""
    spec: dict[str, Any] = page._to_model().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return spec


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
