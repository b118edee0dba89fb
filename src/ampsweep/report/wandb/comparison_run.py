"""A comparison as a run of its own on W&B: tables, panels, page and verdict, without rows of a training."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.record.parts import WandbFacts
from ampsweep.redaction import hidden
from ampsweep.tracking.wandb.run_settings import run_settings
from ampsweep.tracking.wandb.selection import COMPARISON
from ampsweep.tracking.wandb.server import log_in, remote_run, run_path

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.service import Caller


@dataclass(frozen=True)
class ComparisonPage:
    """The content of a comparison's run; names of tables and figures are keys in W&B."""

    id: str
    """The W&B run, always the same for a multirun: a comparison that has grown takes the place of the one before."""
    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    """Rows of values by column, None where there is none; every table has some."""
    figures: Mapping[str, Mapping[str, Any]]
    """Figures of Plotly, as its JSON."""
    html: Path
    """The same as one self-contained file."""
    tags: tuple[str, ...] = ()
    """The tags of any of its runs."""
    alert: str | None = None
    """The text that people who watch the project should get at once."""

    @property
    def digest(self) -> str:
        """Equal for pages that show the same."""
        shown = {name: value for name, value in asdict(self).items() if name != "html"}
        return hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()[:12]


_DIGEST: Final = "digest"
_ALERT: Final = "alert"
"""Keys of its summary beside those of the page."""


def publish(
    caller: "Caller", page: ComparisonPage, place: WandbFacts, directory: Path, within_s: float, is_forced: bool
) -> tuple[str, bool]:
    """Put the comparison on W&B, in place of an earlier one of the same id; its address, and whether it was there.

    One that W&B has as it is now is sent again only where that is forced. It has the project and the group of its runs,
    whose ``place`` this is, but is no run of their sweep. wandb's own files go below ``directory``.

    Raises:
        WandbError: the server cannot be had ``within_s``, or refuses it.
        ValueError: W&B does not take the place or the tags.
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

    tables = {
        name: wandb.Table([*rows[0]], [hidden([*row.values()]) for row in rows]) for name, rows in page.tables.items()
    }
    figures = {name: wandb.Plotly(go.Figure(figure)) for name, figure in page.figures.items()}
    return {**tables, **figures, "comparison": wandb.Html(str(page.html), inject=False)}
