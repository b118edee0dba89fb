"""`ampsweep report --publish`: the comparison as a report and a workspace on a W&B server."""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ampsweep.config.errors import UserError
from ampsweep.record import RunRecord
from ampsweep.report.compare import Compared
from ampsweep.report.dashboard import arrange

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.selection import Selection


def require_wandb_workspaces() -> None:
    """Raises UserError where the package that makes such pages is missing."""
    if find_spec("wandb_workspaces") is None:
        raise UserError("--publish needs the optional package wandb-workspaces: pip install -e '.[publish]'")


def save_views(compared: Compared, directory: Path, address: str | None) -> Iterator[str]:
    """Save the pages about the runs at `address`, or about those that were compared; yields a line for each.

    Raises:
        UserError: it cannot be told which runs of which project are meant, or the server is at fault.
    """
    # Only here: wandb takes half a second to import, its pages another, which no other report should wait for.
    from ampsweep.report.wandb.views.publish import publish
    from ampsweep.tracking.wandb.api import WandbReadError, wandb_api
    from ampsweep.tracking.wandb.selection import Selection

    records = (record for _, record in compared.records)
    selection = _tracked(records) if address is None else Selection.parse(address)
    dashboard = arrange(compared.comparison, compared.records, compared.histories, directory)
    try:
        with wandb_api(selection) as api:
            for page in publish(dashboard, selection, api):
                yield f"{page.what}: {page.url}" + (f" ({page.left})" if page.left is not None else "")
    except WandbReadError as error:
        raise UserError(str(error)) from error


def _tracked(records: Iterable[RunRecord]) -> "Selection":
    """The runs of the groups on W&B that those of `records` are in which were tracked there."""
    from ampsweep.tracking.wandb.selection import SCHEME, Selection

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
