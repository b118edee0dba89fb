"""Saving the report and the workspace of a comparison, again and again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ampsweep.report.dashboard import Dashboard
from ampsweep.report.markdown import verdict_markdown
from ampsweep.report.panels import PANELS, Panel
from ampsweep.report.wandb.views.marks import Json
from ampsweep.report.wandb.views.merge import P, fresh, updated
from ampsweep.report.wandb.views.verdict import ReportPage
from ampsweep.report.wandb.views.views import Kind, Views
from ampsweep.report.wandb.views.workspace import WorkspacePage
from ampsweep.tracking.wandb.selection import Selection

if TYPE_CHECKING:
    import wandb

_KEPT_OUT: Final = "left as it is: somebody has taken away its note about `ampsweep report`"


@dataclass(frozen=True)
class Published:
    """A page that is up to date, unless there is a reason why it was left as it was."""

    what: str
    url: str
    left: str | None = None


def publish(dashboard: Dashboard, selection: Selection, api: "wandb.Api") -> list[Published]:
    """Save the report and the workspace about the selected runs, or bring those that exist up to date.

    Panels that have nothing to show are left out. What people have changed stays as it is. Raises `lost_errors`, and
    WandbReadError where there is no such project.
    """
    views = Views(api, selection)
    panels = _with_something_to_show(dashboard)
    verdict = verdict_markdown(dashboard.comparison)
    report = _save(views, "report", "runs", ReportPage, lambda: ReportPage.of(selection, panels, verdict))
    workspace = _save(
        views, "workspace", "project-view", WorkspacePage, lambda: WorkspacePage.of(selection, panels, report.url)
    )
    return [report, workspace]


def _save(views: Views, what: str, kind: Kind, page: Callable[[Json], P], make: Callable[[], P]) -> Published:
    there = views.find(kind)  # first: without a project the library's errors are its own
    wanted = make()
    new = fresh(wanted) if there is None else updated(page(there.spec), wanted)
    if new is None:
        assert there is not None
        return Published(what, views.url(kind, there), _KEPT_OUT)
    saved = there if there is not None and new.spec == there.spec else views.save(kind, new.spec, there)
    return Published(what, views.url(kind, saved))


def _with_something_to_show(dashboard: Dashboard) -> list[Panel]:
    shown = {panel.key for workload in dashboard.workloads for panel, _ in workload.shown}
    shown |= {panel.key for _, of_series in dashboard.across for panel, _ in of_series}
    return [panel for panel in PANELS if panel.key in shown]
