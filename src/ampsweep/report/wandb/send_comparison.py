"""The comparison of a directory as a run of its own on W&B."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ampsweep.config.errors import UserError
from ampsweep.record import RunRecord
from ampsweep.record.parts import WandbFacts
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

_PUBLISH_S: Final = 60.0
"""The time that W&B may take for a comparison."""
_MAX_OF_A_KEY: Final = 4
"""Figures of one key, such as the panel of each workload, that are sent; the page has all."""

Records = Sequence[tuple[Path, RunRecord]]


def publish_after(directory: Path, document: Document, records: Records, wandb: WandbAddress) -> str | None:
    """Send the comparison of a multirun that has just ended, by the W&B process that has sent its runs.

    Returns a line for the user; None where W&B has none of the runs.
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
    """Send the comparison from this process; its address on W&B.

    Raises:
        UserError: nobody is logged in to W&B, or its server is not there or refuses.
    """
    page, place = _page(directory, document, records), _place(directory, records)
    try:
        url, _ = with_server(publish, page, place, directory, ASK_S, True, silence_s=_PUBLISH_S)
    except WandbError as error:
        raise UserError(f"{directory}: W&B: {error}") from error
    return str(url)


def complete_comparison(directory: Path, wandb: WandbAddress) -> tuple[str, bool]:
    """Send the comparison of a multirun, unless W&B has it as it is now; its address, and whether it was there.

    Raises:
        UserError: there is no record that can be read.
        WandbError: the server is lost or refuses.
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
    """The place of the last of the runs, or the one it would have."""
    last = records[-1][1]
    return place_of(last, group_of(last.identity.experiment, directory))


def _page(directory: Path, document: Document, records: Records) -> ComparisonPage:
    from ampsweep.report.comparison_document import HTML_NAME

    return page_of(document, records, group_of(records[0][1].identity.experiment, directory), directory / HTML_NAME)


def page_of(document: Document, records: Records, group: str, html: Path) -> ComparisonPage:
    """The content of the comparison's run, named after the group of its runs; `html` is its page."""
    # The oldest run stays the oldest when more are added.
    oldest = min((record for _, record in records), key=lambda record: (record.started_at or "", record.run_id))
    experiment = oldest.identity.experiment
    told = [alert for _, record in records for alert in alerts(record).items()]
    first = dict(reversed(told))
    numbers = Counter(title for title, _ in told)
    tags = [tag for _, record in records for tag in record.config.get("tracking", {}).get("tags", [])]
    page = wandb_page(
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
    lines = [f"{title}: {plural(numbers[title], 'run')} ({text})" for title, text in first.items()]
    return replace(page, alert="; ".join(lines) or None)


def wandb_page(
    document: Document, *, id: str, name: str, config: Mapping[str, Any], tags: Sequence[str], html: Path
) -> ComparisonPage:
    """The content of the run `id`.

    Args:
        html: the document as a page, which is sent as it is.
    """
    figures = [block for block in blocks_of(document.sections) if isinstance(block, Figure)]
    of_figures = {figure.key for figure in figures}
    return ComparisonPage(
        id=id,
        name=name,
        config=config,
        summary=document.summary,
        tables={one.key: as_rows(one) for one in tables(document) if one.rows and one.key not in of_figures},
        figures=_drawn(figures),
        html=html,
        tags=tuple(tags),
    )


def _drawn(figures: Iterable[Figure]) -> dict[str, Mapping[str, Any]]:
    """Plotly's JSON by key in W&B: `panels/memory-saved`, and of a key's second figure `panels 2/memory-saved`."""
    found: dict[str, Mapping[str, Any]] = {}
    counts: dict[str, int] = {}
    for figure in figures:
        number = counts[figure.key] = counts.get(figure.key, 0) + 1
        if number <= _MAX_OF_A_KEY:
            found[f"panels{'' if number == 1 else f' {number}'}/{figure.key}"] = figure.plotly()
    return found
