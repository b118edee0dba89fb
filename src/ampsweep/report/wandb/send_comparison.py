"""The comparison of a directory as a run of its own on W&B."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampsweep.config.errors import UserError
from ampsweep.record import RunRecord
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.api import WandbError, errors_of_server, wandb_server
from ampsweep.tracking.wandb.comparison_run import ComparisonPage, publish, published
from ampsweep.tracking.wandb.outage import COMMAND_PATIENCE
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run_settings import WandbPlace, group_of
from ampsweep.tracking.wandb.sync_run import place_of

if TYPE_CHECKING:
    from ampsweep.report.document import Document

Records = Sequence[tuple[Path, RunRecord]]


def publish_after(directory: Path, document: "Document", records: Records, wandb: WandbAddress) -> str | None:
    """Send the comparison of a multirun that has just ended, by the W&B process that has sent its runs.

    Returns a line for the user; None where W&B has none of the runs, offline or because it was lost.
    """
    sent = [(path, record) for path, record in records if record.wandb.url is not None and record.wandb.error is None]
    if not sent or is_agents_run():  # an agent's environment would make it a run of its sweep
        return None
    published = wandb.publish(_page(directory, document, records), _place(directory, sent), directory)
    if published.failure is None:
        return f"W&B: {published.url}"
    return f"W&B: the comparison is not there ({published.failure}); `ampsweep sync {directory}` sends it"


def publish_now(directory: Path, document: "Document", records: Records) -> str:
    """Send the comparison from this process; its address on W&B.

    Raises:
        UserError: nobody is logged in to W&B, or its server is not there or refuses.
    """
    page, place = _page(directory, document, records), _place(directory, records)
    try:
        with wandb_server(), errors_of_server(f"{directory}: W&B"):
            return publish(page, place, directory, COMMAND_PATIENCE)
    except WandbError as error:
        raise UserError(str(error)) from error


def complete_comparison(directory: Path) -> tuple[str, bool]:
    """Send the comparison of a multirun, unless W&B has it as it is now; its address, and whether it was there.

    To be called inside `wandb_server`.

    Raises:
        UserError: there is no record that can be read.
        WandbError: the server is lost or refuses.
    """
    from ampsweep.report.compare import compare_directories
    from ampsweep.report.comparison_document import comparison_document, write_comparison

    compared = compare_directories([directory])
    document = comparison_document(compared, directory)
    page, place = _page(directory, document, compared.records), _place(directory, compared.records)
    with errors_of_server(f"{directory}: W&B"):
        if (url := published(page, place)) is not None:
            return url, True
        write_comparison(document, directory)
        return publish(page, place, directory, COMMAND_PATIENCE), False


def _place(directory: Path, records: Records) -> WandbPlace:
    """The place of the last of the runs, or the one it would have."""
    last = records[-1][1]
    return place_of(last, group_of(last.identity.experiment, directory))


def _page(directory: Path, document: "Document", records: Records) -> ComparisonPage:
    from ampsweep.report.comparison_document import HTML_NAME

    return page_of(document, records, group_of(records[0][1].identity.experiment, directory), directory / HTML_NAME)


def page_of(document: "Document", records: Records, group: str, html: Path) -> ComparisonPage:
    """The content of the comparison's run, named after the group of its runs; `html` is its page."""
    from ampsweep.report.wandb.page import wandb_page

    # The oldest run stays the oldest when more are added.
    oldest = min((record for _, record in records), key=lambda record: (record.started_at or "", record.run_id))
    experiment = oldest.identity.experiment
    tags = [tag for _, record in records for tag in record.config.get("tracking", {}).get("tags", [])]
    return wandb_page(
        document,
        id=f"comparison-{oldest.run_id}",
        name=f"comparison-{group or experiment}",
        config={
            "experiment": experiment,
            "baseline": document.data["baseline"],
            "margin_pct": document.data["margin_pct"],
            "arms": sorted({record.arm for _, record in records}),
        },
        tags=list(dict.fromkeys(tags)),
        html=html,
    )
