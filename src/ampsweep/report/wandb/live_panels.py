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

__all__ = ["BATCH_SIZE", "by_section", "expr", "identified", "saved_spec", "wr", "ws"]

HEADINGS: Final[Mapping[Section, str]] = SECTIONS | {"learning": "Parity"}

BATCH_SIZE: Final = "batch_size"
"""The key of W&B's config with the size that panels are over where none was varied."""

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
    """W&B cannot compare pairs: it shows the two runs of each, one above the other, and no saving or gap."""
    return _dots(panel, f"{panel.metrics[0]} by seed", "seed")


def _of_runs_against_size(panel: Panel, size: str) -> Any:
    return _dots(panel, f"{panel.metrics[0]} against size", size)


def _against_size(panel: Panel, size: str) -> Any:
    return _dots(panel, panel.title, size)


def _dots(panel: Panel, title: str, key: str) -> Any:
    return wr.ScatterPlot(title=title, x=wr.Config(key), y=wr.SummaryMetric(panel.metrics[0]), log_y=panel.log or None)


def _front(panel: Panel) -> Any:
    """W&B knows no baseline, and so no front: it shows step time and memory of each run, without its loss."""
    speed, memory = panel.metrics[:2]
    return wr.ScatterPlot(title="Step time and memory", x=wr.SummaryMetric(speed), y=wr.SummaryMetric(memory))


_KINDS: Final[Mapping[Kind, Callable[[Panel], Any]]] = {
    "front": _front,
    "curves": _curves,
    "by_arm": _bars,
    "stack": _bars,
    "chain": _bars,
    "pairs": _by_seed,
}
"""The changes against a baseline are left out: W&B knows no baseline."""
_OVER_SIZES: Final[Mapping[Kind, Callable[[Panel, str], Any]]] = {
    "against_size": _against_size,
    "effects_against_size": _of_runs_against_size,
}


def by_section(panels: Sequence[Panel], size: str) -> dict[str, list[Any]]:
    """The panels of W&B under each heading that has any; `size`: the key of W&B's config that has the size."""
    found = {
        heading: [made for panel in panels if panel.section == section and (made := _made(panel, size)) is not None]
        for section, heading in HEADINGS.items()
    }
    return {heading: of_section for heading, of_section in found.items() if of_section}


def _made(panel: Panel, size: str) -> Any:
    """The panel; None of a kind that W&B cannot show."""
    if panel.kind in _OVER_SIZES:
        return identified(_OVER_SIZES[panel.kind](panel, size), PREFIX + panel.key)
    return identified(_KINDS[panel.kind](panel), PREFIX + panel.key) if panel.kind in _KINDS else None
