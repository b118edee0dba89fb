"""Sends the comparison of a directory to W&B."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ampsweep.config.errors import UserError
from ampsweep.records import RunRecord
from ampsweep.records.sections import WandbFacts
from ampsweep.report.data_formats import as_rows
from ampsweep.report.document import Document, blocks_of, tables
from ampsweep.report.figure import Figure
from ampsweep.report.wandb.comparison_run import ComparisonPage, publish
from ampsweep.text import plural
from ampsweep.tracking.wandb.content import alerts
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run_settings import group_of
from ampsweep.tracking.wandb.server import ALIVE_S, ASK_S, with_server
from ampsweep.tracking.wandb.sync_run import place_of

_PUBLISH_S: Final = 60.0  # time limit for sending a comparison
_MAX_OF_A_KEY: Final = 4  # figures of one key (a panel of several workloads) that are sent; the page has all

Records = Sequence[tuple[Path, RunRecord]]


def publish_after(directory: Path, document: Document, records: Records, wandb: WandbAddress) -> str | None:
    """Send the comparison of a multirun that has just ended, by its W&B process.

    Returns a line for the user; None if W&B has none of the runs.
    """
    sent = [(path, record) for path, record in records if record.wandb.url is not None and record.wandb.error is None]
    if not sent:
        return None
    page, place = _page(directory, document, records), _place(directory, sent)
    try:
        url, _ = wandb.call(publish, page, place, directory, ALIVE_S, True, silence_s=_PUBLISH_S)
    except WandbError as error:
        return f"W&B: the comparison is not there ({error}); `ampsweep sync {directory}` sends it"
    return f"W&B: {url}"


def publish_now(directory: Path, document: Document, records: Records) -> str:
    """Send the comparison from this process, and return its URL.

    Raises:
        UserError: not logged in to W&B, or its server does not answer or refuses.
    """
    page, place = _page(directory, document, records), _place(directory, records)
    try:
        url, _ = with_server(publish, page, place, directory, ASK_S, True, silence_s=_PUBLISH_S)
    except WandbError as error:
        raise UserError(f"{directory}: W&B: {error}") from error
    return str(url)


def complete_comparison(directory: Path, wandb: WandbAddress) -> tuple[str, bool]:
    """Send the comparison of a multirun unless W&B has it; returns the URL, and True if W&B had it.

    Raises:
        UserError: no record can be read.
        WandbError: the server does not answer or refuses.
    """
    from ampsweep.report.compare import compare_directories
    from ampsweep.report.comparison_document import comparison_document, write_comparison

    compared = compare_directories([directory])
    document = comparison_document(compared, directory)
    page, place = _page(directory, document, compared.records), _place(directory, compared.records)
    write_comparison(document, directory)
    url, was_there = wandb.call(publish, page, place, directory, ASK_S, False, silence_s=_PUBLISH_S)
    return str(url), bool(was_there)


def _place(directory: Path, records: Records) -> WandbFacts:
    last = records[-1][1]
    return place_of(last, group_of(last.identity.experiment, directory))


def _page(directory: Path, document: Document, records: Records) -> ComparisonPage:
    from ampsweep.report.comparison_document import HTML_NAME

    return page_of(document, records, group_of(records[0][1].identity.experiment, directory), directory / HTML_NAME)


def page_of(document: Document, records: Records, group: str, html: Path) -> ComparisonPage:
    """The content of the comparison's run; `html` is its page."""
    # The oldest run stays the oldest when more are added.
    oldest = min((record for _, record in records), key=lambda record: (record.started_at or "", record.run_id))
    experiment = oldest.identity.experiment
    of_runs = [alert for _, record in records for alert in alerts(record).items()]
    first = dict(reversed(of_runs))
    numbers = Counter(title for title, _ in of_runs)
    tags = [tag for _, record in records for tag in record.config.get("tracking", {}).get("tags", [])]
    config = {"experiment": experiment, "arms": sorted({record.arm for _, record in records})}
    page = wandb_page(
        document,
        id=f"comparison-{oldest.run_id}",
        name=f"comparison-{group or experiment}",
        config=config | {key: document.data[key] for key in ("baseline", "margin_pct")},
        tags=list(dict.fromkeys(tags)),
        html=html,
    )
    lines = [f"{title}: {plural(numbers[title], 'run')} ({text})" for title, text in first.items()]
    return replace(page, alert="; ".join(lines) or None)


def wandb_page(
    document: Document, *, id: str, name: str, config: Mapping[str, Any], tags: Sequence[str], html: Path
) -> ComparisonPage:
    """The content of the run `id`; `html` is the document as a page."""
    figures = [block for block in blocks_of(document.sections) if isinstance(block, Figure)]
    of_figures = {figure.key for figure in figures}
    return ComparisonPage(
        id=id,
        name=name,
        config=config,
        summary=document.summary,
        tables={table.key: as_rows(table) for table in tables(document) if table.rows and table.key not in of_figures},
        figures=_drawn(figures),
        html=html,
        tags=tuple(tags),
    )


def _drawn(figures: Iterable[Figure]) -> dict[str, Mapping[str, Any]]:
    """W&B's key -> Plotly's JSON: `panels/memory-saved`, and `panels 2/memory-saved` for the second of a key."""
    found: dict[str, Mapping[str, Any]] = {}
    counts = Counter[str]()
    for figure in figures:
        counts[figure.key] += 1
        if (number := counts[figure.key]) <= _MAX_OF_A_KEY:
            found[f"panels{'' if number == 1 else f' {number}'}/{figure.key}"] = figure.plotly()
    return found
