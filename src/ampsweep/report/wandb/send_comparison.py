"""The comparison of a directory as a run of its own on W&B."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ampsweep.config.errors import UserError
from ampsweep.record import RunRecord
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run_settings import WandbPlace, group_of

if TYPE_CHECKING:
    from ampsweep.report.dashboard import Dashboard
    from ampsweep.tracking.wandb.comparison_run import ComparisonPage

Records = Sequence[tuple[Path, RunRecord]]


def publish_after(directory: Path, dashboard: "Dashboard", records: Records, wandb: WandbAddress) -> str | None:
    """Send the comparison of a multirun that has just ended, by the W&B process that has sent its runs.

    Returns a line for the user; None where W&B has none of the runs, offline or because it was lost.
    """
    sent = [(path, record) for path, record in records if record.wandb.url is not None and record.wandb.error is None]
    if not sent or is_agents_run():  # an agent's environment would make it a run of its sweep
        return None
    page, place = _page(directory, dashboard, records), WandbPlace.recorded(sent[-1][1].wandb)
    published = wandb.publish(page, place, directory)
    if published.failure is None:
        return f"W&B: {published.url}"
    return f"W&B: the comparison is not there ({published.failure}); `ampsweep sync {directory}` sends it"


def publish_now(directory: Path, dashboard: "Dashboard", records: Records) -> str:
    """Send the comparison from this process; its address on W&B.

    Raises:
        UserError: nobody is logged in to W&B, or its server is not there or refuses.
    """
    # Only here: wandb takes half a second to import, which no other command should wait for.
    from ampsweep.tracking.wandb.api import wandb_server
    from ampsweep.tracking.wandb.comparison_run import publish
    from ampsweep.tracking.wandb.outage import COMMAND_PATIENCE

    with _sentences(directory), wandb_server():
        page, place = _page(directory, dashboard, records), _place(directory, records)
        return publish(page, place, directory, COMMAND_PATIENCE)


def complete_comparison(directory: Path) -> tuple[str, bool]:
    """Send the comparison of a multirun, unless W&B has it as it is now; its address, and whether it was there.

    To be called inside `wandb_server`.

    Raises:
        UserError: there is no record that can be read, or the server is lost or refuses.
    """
    from ampsweep.report.compare import compare_directories
    from ampsweep.report.dashboard import arrange
    from ampsweep.report.files import write_comparison
    from ampsweep.tracking.wandb.comparison_run import publish, published
    from ampsweep.tracking.wandb.outage import COMMAND_PATIENCE

    compared = compare_directories([directory])
    made_of = (compared.comparison, compared.records, compared.histories, directory)
    page, place = _page(directory, arrange(*made_of), compared.records), _place(directory, compared.records)
    with _sentences(directory):
        if (url := published(page, place)) is not None:
            return url, True
        write_comparison(*made_of)
        return publish(page, place, directory, COMMAND_PATIENCE), False


@contextmanager
def _sentences(directory: Path) -> Iterator[None]:
    """Raise what goes wrong with the server as a UserError."""
    from ampsweep.tracking.wandb.api import WandbError
    from ampsweep.tracking.wandb.library import error_clause, lost_errors

    try:
        yield
    except WandbError as error:
        raise UserError(str(error)) from error
    except lost_errors() as error:
        raise UserError(f"{directory}: W&B: {error_clause(error)}") from error


def _place(directory: Path, records: Records) -> WandbPlace:
    """The place of the last of the runs, or the one it would have."""
    from ampsweep.tracking.wandb.sync_run import place_of

    last = records[-1][1]
    return place_of(last, group_of(last.identity.experiment, directory))


def _page(directory: Path, dashboard: "Dashboard", records: Records) -> "ComparisonPage":
    from ampsweep.report.files import HTML_NAME
    from ampsweep.report.wandb.comparison_page import comparison_page

    group = group_of(records[0][1].identity.experiment, directory)
    return comparison_page(dashboard, records, group=group, html=directory / HTML_NAME)
