"""A comparison as a W&B run of its own: tables, panels, page and verdict."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.errors import UserError
from ampsweep.config.identity import digest_of_values
from ampsweep.records import RunRecord
from ampsweep.records.sections import WandbFacts
from ampsweep.redaction import hidden
from ampsweep.report.data_formats import as_rows
from ampsweep.report.document import Document, blocks_of, tables
from ampsweep.report.figure import Figure
from ampsweep.report.tables import HTML_NAME
from ampsweep.text import plural
from ampsweep.tracking.wandb.content import alerts
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run_settings import group_of, run_settings
from ampsweep.tracking.wandb.selection import COMPARISON
from ampsweep.tracking.wandb.server import ALIVE_S, ASK_S, log_in, remote_run, run_path, with_server
from ampsweep.tracking.wandb.sync_run import place_of

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.service import Caller

_PUBLISH_S: Final = 60.0  # time limit for sending a comparison
_MAX_OF_A_KEY: Final = 4  # figures of one key (a panel of several workloads) that are sent; the page has all
_DIGEST: Final = "digest"
_ALERT: Final = "alert"  # keys of its summary beside those of the page

Records = Sequence[tuple[Path, RunRecord]]


@dataclass(frozen=True)
class ComparisonPage:
    """The content of a comparison's run; the names of tables and figures are W&B's keys."""

    id: str  # the id of the run, the same for each comparison of a multirun: a newer one replaces it
    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]  # nonempty rows: column -> value or None
    figures: Mapping[str, Mapping[str, Any]]  # Plotly's JSON
    html: Path  # the document as one self-contained file
    tags: tuple[str, ...] = ()  # the tags of all its runs
    alert: str | None = None  # the text of a W&B alert

    @property
    def digest(self) -> str:
        """Equal for pages with the same content."""
        return digest_of_values(vars(self) | {"html": None})


def publish_after(directory: Path, document: Document, records: Records, wandb: WandbAddress) -> str | None:
    """Send the comparison of a multirun that has just ended, by its W&B process.

    Returns a line for the user; None if W&B has none of the runs.
    """
    sent = [record for _, record in records if record.wandb.url is not None and record.wandb.error is None]
    if not sent:
        return None
    try:
        url, _ = _send(wandb.call, directory, document, records, sent[-1], ALIVE_S)
    except WandbError as error:
        return f"W&B: the comparison is not there ({error}); `ampsweep sync {directory}` sends it"
    return f"W&B: {url}"


def publish_now(directory: Path, document: Document, records: Records) -> str:
    """Send the comparison from this process, and return its URL.

    Raises:
        UserError: not logged in to W&B, or its server does not answer or refuses.
    """
    try:
        url, _ = _send(with_server, directory, document, records, records[-1][1], ASK_S)
    except WandbError as error:
        raise UserError(f"{directory}: W&B: {error}") from error
    return url


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
    write_comparison(document, directory)
    return _send(wandb.call, directory, document, compared.records, compared.records[-1][1], ASK_S, is_forced=False)


def _send(
    call: Callable[..., Any],
    directory: Path,
    document: Document,
    records: Records,
    beside: RunRecord,
    within_s: float,
    *,
    is_forced: bool = True,
) -> tuple[str, bool]:
    """Publish the comparison in the project of the run `beside` it."""
    group = group_of(beside.identity.experiment, directory)
    page, place = page_of(document, records, group, directory / HTML_NAME), place_of(beside, group)
    url, was_there = call(publish, page, place, directory, within_s, is_forced, silence_s=_PUBLISH_S)
    return str(url), bool(was_there)


def page_of(document: Document, records: Records, group: str, html: Path) -> ComparisonPage:
    """The content of the comparison's run; `html` is its page."""
    # The oldest run stays the oldest when more are added.
    oldest = min((record for _, record in records), key=lambda record: (record.started_at or "", record.run_id))
    experiment = oldest.identity.experiment
    of_runs = [alert for _, record in records for alert in alerts(record).items()]
    numbers = Counter(title for title, _ in of_runs)
    lines = [f"{title}: {plural(numbers[title], 'run')} ({text})" for title, text in dict(reversed(of_runs)).items()]
    tags = [tag for _, record in records for tag in record.config.get("tracking", {}).get("tags", [])]
    config = {"experiment": experiment, "arms": sorted({record.arm for _, record in records})}
    figures = [block for block in blocks_of(document.sections) if isinstance(block, Figure)]
    of_figures = {figure.key for figure in figures}
    return ComparisonPage(
        id=f"comparison-{oldest.run_id}",
        name=f"comparison-{group or experiment}",
        config=config | {key: document.data[key] for key in ("baseline", "margin_pct")},
        summary=document.summary,
        tables={table.key: as_rows(table) for table in tables(document) if table.key not in of_figures},
        figures=dict(_drawn(figures)),
        html=html,
        tags=tuple(dict.fromkeys(tags)),
        alert="; ".join(lines) or None,
    )


def _drawn(figures: Sequence[Figure]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """W&B's key and Plotly's JSON: `panels/memory-saved`, and `panels 2/memory-saved` for the second of a key."""
    counts = Counter[str]()
    for figure in figures:
        counts[figure.key] += 1
        if (number := counts[figure.key]) <= _MAX_OF_A_KEY:
            yield f"panels{'' if number == 1 else f' {number}'}/{figure.key}", figure.plotly()


def publish(
    caller: "Caller", page: ComparisonPage, place: WandbFacts, directory: Path, within_s: float, is_forced: bool
) -> tuple[str, bool]:
    """Send the comparison to W&B, replacing an earlier one of its id; returns the URL, and True if it was up to date.

    Args:
        place: the project and group of its runs; it is not part of their sweep.
        directory: for wandb's own files.
        is_forced: send it even if it is up to date.

    Raises:
        WandbError: the server does not answer `within_s`, or refuses it.
        ValueError: W&B rejects the place or the tags.
    """
    log_in(caller, within_s)
    there = remote_run(run_path(place, page.id))
    before = {} if there is None else there.summary_metrics
    if there is not None and not is_forced and (there.state, before.get(_DIGEST)) == ("finished", page.digest):
        return there.url, True
    import wandb

    run = wandb.init(
        id=page.id,
        name=page.name,
        job_type=COMPARISON,
        config=hidden(dict(page.config)),
        dir=str(directory),
        mode="online",
        resume="allow",
        settings=run_settings(replace(place, sweep=None), list(page.tags)),
    )
    run.log(_media(page))
    if page.alert is not None and before.get(_ALERT) != page.alert:
        run.alert("Runs of a sweep went wrong", page.alert, level="WARN")
        run.summary[_ALERT] = page.alert
    run.summary.update({**hidden(dict(page.summary)), _DIGEST: page.digest})
    run.finish()
    return str(run.url), False


def _media(page: ComparisonPage) -> dict[str, Any]:
    import plotly.graph_objects as go
    import wandb

    media: dict[str, Any] = {"comparison": wandb.Html(str(page.html), inject=False)}
    for name, rows in page.tables.items():
        media[name] = wandb.Table([*rows[0]], [hidden([*row.values()]) for row in rows])
    return media | {name: wandb.Plotly(go.Figure(figure)) for name, figure in page.figures.items()}
