"""A workspace of W&B: live panels of the selected runs, grouped by precision mode."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from ampsweep.report.panels import Panel
from ampsweep.report.wandb.live_panels import BATCH_SIZE, by_section, expr, identified, saved_spec, wr, ws
from ampsweep.report.wandb.view_merge import ABOUT, PREFIX, Json, PagePart, key_in, marked
from ampsweep.report.wandb.view_store import run_filter, title
from ampsweep.tracking.wandb.selection import Selection

_COLUMNS: Final = ("summary:status", "summary:perf/step_ms", "summary:memory/peak_allocated_gib", "summary:val/loss")
_RUNS: Final = "run set"
_ABOUT: Final = """Live panels of {selection}, grouped by precision mode; the verdict is in [a report]({report}).

`ampsweep report --publish` keeps them up to date. What you add, change or delete here stays so."""


@dataclass(frozen=True)
class WorkspaceView:
    """The JSON of a workspace. Its parts are panels, in sections, and the choice of runs."""

    spec: Json

    @classmethod
    def of(cls, selection: Selection, panels: Sequence[Panel], report: str, size: str = BATCH_SIZE) -> Self:
        """A workspace with `panels` of the selected runs; `report` is the address of the report beside it.

        Panels over a size take it from the key `size` of W&B's config.
        """
        about = wr.MarkdownPanel(marked(_ABOUT.format(selection=selection, report=report), ABOUT))
        sections = {"About": [identified(about, PREFIX + ABOUT)], **by_section(panels, size)}
        runs = ws.RunsetSettings(
            filters=run_filter(selection), groupby=[expr.Config("precision_mode")], pinned_columns=list(_COLUMNS)
        )
        page = ws.Workspace(
            entity=selection.entity,
            project=selection.project,
            name=title(selection),
            sections=[ws.Section(name=name, panels=found, is_open=True) for name, found in sections.items()],
            runset_settings=runs,
        )
        return cls(saved_spec(page))

    @property
    def about(self) -> str | None:
        """The text of the panel with our mark."""
        texts = (_text(panel) for section in self._sections for panel in section["panels"])
        return next((text for text in texts if key_in(text) == ABOUT), None)

    def parts(self) -> list[PagePart]:
        """The panels and the choice of runs."""
        panels = [self._panel(panel, section["name"]) for section in self._sections for panel in section["panels"]]
        runs = self._run_sets[0]
        own = {key: runs[key] for key in ("filters", "grouping")}
        return [*panels, PagePart("runs", runs, own, where=_RUNS)]

    def with_parts(self, parts: Sequence[PagePart], about: str) -> Self:
        """Panels under a heading that is not there make a section, like those that are."""
        page = type(self)(copy.deepcopy(self.spec))
        panels = [part for part in parts if part.where != _RUNS]
        page._run_sets[0] = next(part.content for part in parts if part.where == _RUNS)
        like = page._sections[-1]
        for name in dict.fromkeys(panel.where for panel in panels):
            if name not in {section["name"] for section in page._sections}:
                page._sections.append({key: value for key, value in like.items() if key != "__id__"} | {"name": name})
        for section in page._sections:
            section["panels"] = copy.deepcopy([panel.content for panel in panels if panel.where == section["name"]])
        for panel in (panel for section in page._sections for panel in section["panels"]):
            if key_in(_text(panel)) == ABOUT:
                panel["config"]["value"] = about
        return page

    def _panel(self, panel: Json, where: str) -> PagePart:
        id = str(panel.get("__id__", ""))
        is_ours = id.startswith(PREFIX) and id != PREFIX + ABOUT
        # Where the app keeps what people have changed of a panel.
        is_changed = f"__custom_panel__:{id}" in (self._bank.get("panelConfigOverrides") or {})
        key = id.removeprefix(PREFIX) if is_ours and not is_changed else None
        return PagePart(key, panel, {name: panel[name] for name in ("viewType", "config") if name in panel}, where)

    @property
    def _bank(self) -> Json:
        bank: Json = self.spec["section"]["panelBankConfig"]
        return bank

    @property
    def _sections(self) -> list[Any]:
        sections: list[Any] = self._bank["sections"]
        return sections

    @property
    def _run_sets(self) -> list[Any]:
        run_sets: list[Any] = self.spec["section"]["runSets"]
        return run_sets


def _text(panel: Json) -> str:
    """The text of a panel; none of others."""
    return str(panel.get("config", {}).get("value", ""))
