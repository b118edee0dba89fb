"""A comparison as a W&B run of its own: tables, panels, page and verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.identity import digest_of_values
from ampsweep.records.sections import WandbFacts
from ampsweep.redaction import hidden
from ampsweep.tracking.wandb.run_settings import run_settings
from ampsweep.tracking.wandb.selection import COMPARISON
from ampsweep.tracking.wandb.server import log_in, remote_run, run_path

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.service import Caller


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
        shown = {name: value for name, value in asdict(self).items() if name != "html"}
        return digest_of_values(shown)


_DIGEST: Final = "digest"
_ALERT: Final = "alert"  # keys of its summary beside those of the page


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
