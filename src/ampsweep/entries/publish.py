"""The comparison of a directory as a run of its own on W&B."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampsweep.config.errors import UserError
from ampsweep.config.schema import TrackingConfig
from ampsweep.entries.directories import group_of
from ampsweep.record import RunRecord
from ampsweep.tracking.agent import is_agents_run
from ampsweep.tracking.wandb_place import WandbPlace
from ampsweep.tracking.wandb_process import WandbAddress

if TYPE_CHECKING:
    from ampsweep.report.dashboard import Dashboard
    from ampsweep.tracking.comparison_page import ComparisonPage

Records = Sequence[tuple[Path, RunRecord]]


def publish_after(directory: Path, dashboard: "Dashboard", records: Records, wandb: WandbAddress) -> str | None:
    """Send the comparison of a multirun that has just ended, by the W&B process that has sent its runs.

    Returns a line for the user; None where W&B has none of the runs, offline or because it was lost.
    """
    sent = [(path, record) for path, record in records if "url" in record.wandb and "error" not in record.wandb]
    if not sent or is_agents_run():  # an agent's environment would make it a run of its sweep
        return None
    page, place = _page(directory, dashboard, records), WandbPlace.recorded(sent[-1][1].wandb)
    published = wandb.publish(page, place, directory)
    if published.problem is None:
        return f"W&B: {published.url}"
    return f"W&B: the comparison is not there ({published.problem}); `ampsweep report --wandb {directory}` sends it"


def publish_now(directory: Path, dashboard: "Dashboard", records: Records) -> str:
    """Send the comparison from this process; its address on W&B.

    Raises:
        UserError: nobody is logged in to W&B, or its server is not there or refuses.
    """
    # Only here: wandb takes half a second to import, which no other command should wait for.
    from ampsweep.tracking.wandb_comparison import publish
    from ampsweep.tracking.wandb_core import first_line, lost_errors
    from ampsweep.tracking.wandb_sync import SyncError, wandb_server

    latest = records[-1][1]
    tracking = TrackingConfig(**latest.config["tracking"])
    group = group_of(latest.identity.experiment, directory)
    place = WandbPlace.recorded(latest.wandb) if "project" in latest.wandb else WandbPlace.here(tracking, group)
    try:
        with wandb_server():
            return publish(_page(directory, dashboard, records), place.settings([]), directory)
    except SyncError as error:
        raise UserError(str(error)) from error
    except lost_errors() as error:
        raise UserError(f"W&B: {first_line(error)}") from error


def _page(directory: Path, dashboard: "Dashboard", records: Records) -> "ComparisonPage":
    from ampsweep.report.files import HTML_NAME
    from ampsweep.report.wandb_page import comparison_page

    group = group_of(records[0][1].identity.experiment, directory)
    return comparison_page(dashboard, records, group=group, html=directory / HTML_NAME)
