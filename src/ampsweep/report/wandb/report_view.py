"""A report of W&B: the verdict as it was computed, and live panels of the selected runs."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from ampsweep.report.panels import Panel
from ampsweep.report.wandb.live_panels import BATCH_SIZE, by_section, identified, saved_spec, wr
from ampsweep.report.wandb.view_merge import ABOUT, PREFIX, Json, PagePart, key_in, marked
from ampsweep.report.wandb.view_store import run_filter, title
from ampsweep.tracking.wandb.selection import Selection

_VERDICT: Final = "verdict"
_ABOUT: Final = """The verdict is computed by `ampsweep report` from {selection}; the panels are live.

`ampsweep report --publish` keeps both up to date. What you add, change or delete here stays so."""


@dataclass(frozen=True)
class ReportView:
    """The JSON of a report. Its parts are its blocks."""

    spec: Json

    @classmethod
    def of(cls, selection: Selection, panels: Sequence[Panel], verdict: str, size: str = BATCH_SIZE) -> Self:
        """A report with the Markdown `verdict` and `panels` of the selected runs, which must exist on the server.

        Panels over a size take it from the key `size` of W&B's config.
        """
        blocks = [wr.MarkdownBlock(marked(verdict, _VERDICT))]
        for heading, of_section in by_section(panels, size).items():
            blocks.append(wr.MarkdownBlock(marked(f"## {heading}", f"heading-{heading.replace(' ', '-')}")))
            blocks.append(wr.PanelGrid(runsets=[_run_set(selection, heading)], panels=of_section))
        blocks.append(wr.MarkdownBlock(marked(_ABOUT.format(selection=selection), ABOUT)))
        page = wr.Report(entity=selection.entity, project=selection.project, title=title(selection), blocks=blocks)
        return cls(saved_spec(page))

    @property
    def about(self) -> str | None:
        """The text of the block with our mark."""
        return next((block["content"] for block in self._blocks if _key(block) == ABOUT), None)

    def parts(self) -> list[PagePart]:
        """The blocks."""
        return [_part(block) for block in self._blocks]

    def with_parts(self, parts: Sequence[PagePart], about: str) -> Self:
        page = type(self)(copy.deepcopy(self.spec))
        page.spec["blocks"] = copy.deepcopy([part.content for part in parts])
        for block in page._blocks:
            if _key(block) == ABOUT:
                block["content"] = about
        return page

    @property
    def _blocks(self) -> list[Any]:
        blocks: list[Any] = self.spec["blocks"]
        return blocks


def _run_set(selection: Selection, heading: str) -> Any:
    run_set = wr.Runset(
        entity=selection.entity,
        project=selection.project,
        name="By precision mode",
        filters=run_filter(selection),
        groupby=["config.precision_mode"],
    )
    return identified(run_set, PREFIX + heading.replace(" ", "-"))


def _part(block: Json) -> PagePart:
    key = _key(block)
    own: Json = {name: block[name] for name in ("content", "metadata") if name in block}
    return PagePart(None if key == ABOUT else key, block, own)


def _key(block: Json) -> str | None:
    if block["type"] == "panel-grid":
        id = str(block["metadata"]["runSets"][0]["id"])
        return id.removeprefix(PREFIX) if id.startswith(PREFIX) else None
    return key_in(block["content"]) if block["type"] == "markdown-block" else None
