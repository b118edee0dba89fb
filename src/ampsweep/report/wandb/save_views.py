"""`ampsweep report --publish`: the comparison as a report and a workspace on a W&B server, saved again and again."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ampsweep.config.errors import UserError
from ampsweep.record import RunRecord
from ampsweep.report.compare import Compared
from ampsweep.report.dashboard import Dashboard, arrange
from ampsweep.report.markdown import verdict_markdown
from ampsweep.report.panels import PANELS, Panel
from ampsweep.report.wandb.view_merge import Json, P, fresh, updated
from ampsweep.report.wandb.view_store import Kind, Views
from ampsweep.tracking.wandb.api import WandbError, wandb_api
from ampsweep.tracking.wandb.selection import SCHEME, Selection

if TYPE_CHECKING:
    import wandb

_KEPT_OUT: Final = "left as it is: somebody has taken away its note about `ampsweep report`"


@dataclass(frozen=True)
class SavedPage:
    """A page that is up to date, unless there is a reason why it was left as it was."""

    what: str
    url: str
    left: str | None = None


def require_wandb_workspaces() -> None:
    """Raise UserError where the package that makes such pages is missing."""
    if find_spec("wandb_workspaces") is None:
        raise UserError("--publish needs the optional package wandb-workspaces: pip install -e '.[publish]'")


def save_views(compared: Compared, directory: Path, address: str | None) -> Iterator[str]:
    """Save the pages about the runs at `address`, or about those that were compared; yields a line for each.

    Raises:
        UserError: it cannot be told which runs of which project are meant, or the server is at fault.
    """
    records = (record for _, record in compared.records)
    selection = _tracked(records) if address is None else Selection.parse(address)
    dashboard = arrange(compared.comparison, compared.records, compared.histories, directory)
    try:
        with wandb_api(selection) as api:
            for page in publish_views(dashboard, selection, api):
                yield f"{page.what}: {page.url}" + (f" ({page.left})" if page.left is not None else "")
    except WandbError as error:
        raise UserError(str(error)) from error


def publish_views(dashboard: Dashboard, selection: Selection, api: "wandb.Api") -> list[SavedPage]:
    """Save the report and the workspace about the selected runs, or bring those that exist up to date.

    Panels that have nothing to show are left out. What people have changed stays as it is. Raises `lost_errors`, and
    WandbError where there is no such project.
    """
    # Only here: both take the library that `require_wandb_workspaces` asks for.
    from ampsweep.report.wandb.report_view import ReportView
    from ampsweep.report.wandb.workspace_view import WorkspaceView

    views = Views(api, selection)
    panels, size = _with_something_to_show(dashboard), _config_key(dashboard)
    verdict = verdict_markdown(dashboard.comparison)
    report = _save(views, "report", "runs", ReportView, lambda: ReportView.of(selection, panels, verdict, size))
    workspace = _save(
        views, "workspace", "project-view", WorkspaceView, lambda: WorkspaceView.of(selection, panels, report.url, size)
    )
    return [report, workspace]


def _save(views: Views, what: str, kind: Kind, page: Callable[[Json], P], make: Callable[[], P]) -> SavedPage:
    there = views.find(kind)  # first: without a project the library's errors are its own
    wanted = make()
    new = fresh(wanted) if there is None else updated(page(there.spec), wanted)
    if new is None:
        assert there is not None
        return SavedPage(what, views.url(kind, there), _KEPT_OUT)
    saved = there if there is not None and new.spec == there.spec else views.save(kind, new.spec, there)
    return SavedPage(what, views.url(kind, saved))


def _with_something_to_show(dashboard: Dashboard) -> list[Panel]:
    shown = {panel.key for workload in dashboard.workloads for panel, _ in workload.shown}
    shown |= {panel.key for series in dashboard.series for panel, _ in series.shown}
    return [panel for panel in PANELS if panel.key in shown]


def _config_key(dashboard: Dashboard) -> str:
    """The key of W&B's config with the size that panels of W&B are over: the first one that was varied."""
    series = next((one.data.series for one in dashboard.series), None)
    if series is None:
        return "batch_size"
    # The identity is flat in W&B's config; the resolved config is one value of it.
    return series.key if series.key != series.config_key else f"config.{series.config_key}"


def _tracked(records: Iterable[RunRecord]) -> Selection:
    """The runs of the groups on W&B that those of `records` are in which were tracked there."""
    places = [one.wandb for one in records if one.wandb.mode == "online" and one.wandb.project is not None]
    if not places:
        raise UserError("--publish: none of the runs is on a W&B server; `ampsweep sync DIR` sends them there")
    projects = sorted({(str(place.entity), str(place.project)) for place in places})
    if len(projects) > 1:
        names = ", ".join(f"{entity}/{project}" for entity, project in projects)
        raise UserError(f"--publish: the runs are in several projects ({names}); publish the runs of one")
    selection = Selection(*projects[0], groups=tuple(sorted({place.group or "" for place in places})))
    if "" in selection.groups:
        raise UserError(f"--publish: some of the runs are in no group; name all runs of their project, {SCHEME}...")
    return selection
