"""`ampsweep report --publish`: a new report and workspace on W&B, by the optional package wandb-workspaces.

W&B knows no pairs of runs: its own panels show values of runs, and the effects against the baseline are tables and
figures of the comparison's run.
"""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # wandb-workspaces 0.4 uses pydantic's older validators
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

from ampsweep.config.errors import UserError
from ampsweep.metrics import STEP
from ampsweep.records import write_atomically
from ampsweep.records.sections import WandbFacts
from ampsweep.report.compare import Compared
from ampsweep.report.document import Document
from ampsweep.report.html import html
from ampsweep.report.markdown import blocks_as_markdown
from ampsweep.report.palette import colours_without_dashes
from ampsweep.report.panels import PANELS, Kind, Panel
from ampsweep.report.tables import HTML_NAME
from ampsweep.report.wandb.send_comparison import ComparisonPage, page_of, publish
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.selection import COMPARISON, SCHEME, Selection
from ampsweep.tracking.wandb.server import ASK_S, with_server

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.service import Caller

_SAVING_S: Final = 120.0
_ARM: Final = "arm"
_RUNS: Final = "By arm"
_COLUMNS: Final = ("summary:status", "summary:perf/step_ms", "summary:memory/peak_allocated_gib", "summary:val/loss")
_DIFFERENCES: Final = ("arms", "sizes", "strategies", "largest_batches", "resumed")
"""The tables of a comparison that compare arms."""
_TITLES: Final = {f"panels/{panel.key}": panel.title for panel in PANELS}


def save_views(compared: Compared, document: Document, address: str | None) -> list[str]:
    """Save the comparison of the runs at `address`, by default those that were compared; returns a line for each page.

    Raises:
        UserError: the runs have no common project or group, or the server does not answer or refuses.
    """
    selection = _tracked(compared) if address is None else Selection.parse(address)
    group = selection.groups[0] if len(selection.groups) == 1 else None
    with TemporaryDirectory() as scratch:
        shown = Path(scratch) / HTML_NAME
        write_atomically(shown, html(document))
        page = page_of(document, compared.records, group or selection.project, shown)
        if group is None:  # not the comparison of the oldest run's sweep
            page = replace(page, id=f"comparison-{hashlib.sha256(str(selection).encode()).hexdigest()[:8]}")
        place = WandbFacts(project=selection.project, entity=selection.entity, group=group)
        try:
            saved: list[str] = with_server(
                _save, selection, page, place, document, compared, Path(scratch), silence_s=_SAVING_S
            )
        except WandbError as error:
            raise UserError(f"{selection}: {error}") from error
    return saved


def _save(
    caller: "Caller",
    selection: Selection,
    page: ComparisonPage,
    place: WandbFacts,
    document: Document,
    compared: Compared,
    scratch: Path,
) -> list[str]:
    publish(caller, page, place, scratch, ASK_S, True)
    runs = ", ".join(selection.groups) or selection.sweep or selection.project
    # W&B rejects emojis and signs such as a plus.
    title = re.sub(r"[^\w .,:()-]", "_", f"Precision of {runs}")[:100] + f" {datetime.now():%Y-%m-%d %H:%M:%S}"
    colours = colours_without_dashes(document.arms)
    report = wr.Report(
        **_place(selection),
        title=title,
        blocks=[
            wr.MarkdownBlock(blocks_as_markdown(document.sections[:1])),
            wr.MarkdownBlock("## Against the baseline"),
            _differences(selection, page),
            *_live_blocks(selection, _by_section(page, compared), colours),
            wr.MarkdownBlock(f"Made by `ampsweep report` from {selection}. The panels by arm are live."),
        ],
    ).save()
    about = wr.MarkdownPanel(f"Live panels of {selection}, by arm; the verdict is in [a report]({report.url}).")
    workspace = ws.Workspace(
        **_place(selection),
        name=title,
        sections=[
            ws.Section(name=name, panels=panels, is_open=True)
            for name, panels in {"About": [about], **_by_section(page, compared)}.items()
        ],
        runset_settings=ws.RunsetSettings(
            filters=_chosen(selection), groupby=[expr.Config(_ARM)], group_colors=colours, pinned_columns=list(_COLUMNS)
        ),
    ).save()
    return [f"report: {report.url}", f"workspace: {workspace.url}"]


def _tracked(compared: Compared) -> Selection:
    facts = [record.wandb for _, record in compared.records]
    places = [place for place in facts if place.mode == "online" and place.project is not None]
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


def _place(selection: Selection) -> dict[str, str]:
    return {"entity": selection.entity, "project": selection.project}


def _differences(selection: Selection, page: ComparisonPage) -> Any:
    """The comparison's figures without a live panel, and its tables of the arms."""
    live = {panel.key for panel in PANELS if panel.kind in _LIVE}
    figures = [
        wr.MediaBrowser(title=_TITLES.get(key), media_keys=[key])
        for key in page.figures
        if key.rpartition("/")[2] not in live
    ]
    tables = [wr.WeavePanelSummaryTable(table_name=name) for name in _DIFFERENCES if name in page.tables]
    runs = wr.Runset(**_place(selection), name="Comparison", filters=f'Metric("ID") == {_literal(page.id)}')
    return wr.PanelGrid(runsets=[runs], panels=[*figures, *tables])


def _live_blocks(selection: Selection, sections: dict[str, list[Any]], colours: dict[str, str]) -> Iterator[Any]:
    of_groups = {
        wr.RunsetGroup(_RUNS, (wr.RunsetGroupKey(wr.Config(_ARM), arm),)): colour for arm, colour in colours.items()
    }
    where, groupby = _place(selection), [f"config.{_ARM}"]
    for heading, panels in sections.items():
        runs = wr.Runset(**where, name=_RUNS, filters=_chosen(selection), groupby=groupby)
        yield wr.MarkdownBlock(f"## {heading}")
        yield wr.PanelGrid(runsets=[runs], panels=panels, custom_run_colors=of_groups)


def _by_section(page: ComparisonPage, compared: Compared) -> dict[str, list[Any]]:
    series = next(iter(compared.comparison.series), None)
    size = "batch_size"
    if series is not None:  # a key of the config such as `optimizer.lr`, by its place on W&B (see `run_config`)
        name = series.key.rpartition(".")[2]
        size = name if name in vars(compared.records[0][1].identity) else f"config.{series.key}"
    shown = {key.rpartition("/")[2] for key in page.figures}
    found: dict[str, list[Any]] = {}
    for panel in PANELS:
        if panel.key in shown and panel.kind in _LIVE:
            found.setdefault(panel.section, []).append(_LIVE[panel.kind](panel, size))
    return found


def _bars(panel: Panel, size: str) -> Any:
    return wr.BarPlot(title=panel.title, metrics=list(panel.metrics), title_x=panel.unit or None)


_LIVE: Final[Mapping[Kind, Callable[[Panel, str], Any]]] = {
    "curves": lambda panel, _: wr.LinePlot(
        title=panel.title, x=STEP, y=list(panel.metrics), log_y=panel.log or None, title_y=panel.unit or None
    ),
    "by_arm": _bars,
    "stack": _bars,
    "against": lambda panel, size: wr.ScatterPlot(
        title=panel.title, x=wr.Config(size), y=wr.SummaryMetric(panel.metrics[0]), log_y=panel.log or None
    ),
}
"""Kinds of panels that show values of runs; `size` is the key of the varied size in W&B's config."""


def _chosen(selection: Selection) -> str:
    """The runs without comparisons, in wandb-workspaces' filter language."""
    wanted = [f'Metric("JobType") != {_literal(COMPARISON)}']
    if selection.sweep is not None:
        wanted.append(f'Metric("Sweep") == {_literal(selection.sweep)}')
    if selection.groups:
        wanted.append(f'Metric("Group") in [{", ".join(map(_literal, selection.groups))}]')
    return " and ".join(wanted)


def _literal(text: str) -> str:
    """A string with special characters escaped: wandb-workspaces 0.4 replaces `=`, `<` and `>` even within strings."""
    return '"' + "".join(sign if sign.isascii() and sign.isalnum() else f"\\U{ord(sign):08x}" for sign in text) + '"'
