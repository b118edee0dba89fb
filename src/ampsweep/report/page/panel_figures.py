"""Panels on the page: a picture that the page's script draws, its question, and its figures as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ampsweep.analysis.size_series import SizeSeries
from ampsweep.report.dashboard import Dashboard, PanelShown, WorkloadPanels
from ampsweep.report.figures import PanelFigure
from ampsweep.report.page.filters import facts_attribute
from ampsweep.report.page.markup import Markup, join, name, sentence, tag
from ampsweep.report.page.tables import details, html_table
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import SECTIONS, Panel
from ampsweep.report.sentences.sizes import section_heading, series_heading, series_lines
from ampsweep.report.size_tables import size_table
from ampsweep.text import plural

MAX_OPEN_SERIES: Final = 2
"""With more series of sizes only the first one's panels are unfolded."""


@dataclass
class Figures:
    """Collects the figures of a page for its script; each is known to its panel by its number."""

    drawn: list[dict[str, Any]] = field(default_factory=list)

    def add(self, shown: PanelFigure) -> str:
        self.drawn.append({"traces": list(shown.traces), "layout": shown.layout})
        return str(len(self.drawn) - 1)


def workload_panels(
    one: WorkloadPanels, index: int, dashboard: Dashboard, figures: Figures, keys: Sequence[str], *, open_: bool
) -> Markup:
    """All panels of one workload by section, and the reasons why some are left out."""
    sections = []
    for section, heading in SECTIONS.items():
        panels = [item for item in one.shown if item[0].section == section]
        if panels:
            cards = [panel_figure(item, f"w{index}", dashboard, figures) for item in panels]
            sections.append(tag("section", tag("h4", heading), tag("div", *cards, class_="panels")))
    return tag(
        "details",
        tag("summary", tag("h3", name(one.data.workload.title))),
        *sections,
        _absent(one.absent),
        class_="workload",
        open=open_,
        data_facts=facts_attribute(one.data.workload.facts, keys),
    )


def series_panels(dashboard: Dashboard, figures: Figures, keys: Sequence[str]) -> Markup | None:
    """Panels over the sizes that were varied; of many series only the first is unfolded."""
    shown = [(index, one) for index, one in enumerate(dashboard.series) if one.shown]
    num_open = len(shown) if len(shown) <= MAX_OPEN_SERIES else 1
    series = [
        tag(
            "section",
            tag(
                "details",
                tag("summary", tag("h3", name(series_heading(one.data.series)))),
                _side_by_side(one.data.series, dashboard),
                _lines(one.data.series, dashboard),
                tag("div", *(panel_figure(it, f"a{index}", dashboard, figures) for it in one.shown), class_="panels"),
                _absent(one.absent),
                class_="workload",
                open=place < num_open,
            ),
            data_facts=facts_attribute(one.data.series.facts, keys),
        )
        for place, (index, one) in enumerate(shown)
    ]
    heading = section_heading([one.data.series for _, one in shown])
    return tag("section", tag("h2", heading), *series, id="against-size") if series else None


def _side_by_side(series: SizeSeries, dashboard: Dashboard) -> Markup | None:
    """The table of words, such as strategies; of sizes each panel has its own."""
    if not series.in_words:
        return None
    table = size_table(series, dashboard.comparison)
    attributes = [{"data_arm": row[0]} for row in table.rows]
    return html_table(table, dashboard.styles, caption=series_heading(series), attributes=attributes)


def _lines(series: SizeSeries, dashboard: Dashboard) -> Markup | None:
    lines = [tag("li", sentence(line, dashboard.styles)) for line in series_lines(series)]
    return tag("ul", *lines) if lines else None


def panel_figure(item: PanelShown, prefix: str, dashboard: Dashboard, figures: Figures) -> Markup:
    """One panel; `prefix` tells it from the same panel of something else."""
    panel, shown = item
    return figure_card(
        shown,
        figures,
        identifier=f"{prefix}-{panel.key}",
        title=panel.title,
        question=panel.question,
        note=panel.note,
        wide=_is_wide(panel),
        styles=dashboard.styles,
    )


def figure_card(
    shown: PanelFigure,
    figures: Figures,
    *,
    identifier: str,
    title: str,
    question: str,
    note: str = "",
    wide: bool = False,
    styles: Mapping[str, ArmStyle] = {},
) -> Markup:
    """A picture with its title, its remarks and its figures as a table; its height is that of its layout."""
    table = None
    if shown.table is not None:
        table = details("Figures as a table", html_table(shown.table, styles, caption=title))
    drawn = f"{title}, drawn" + ("; its figures are in the table below" if table else "")
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("strong", title, id=f"{identifier}-title"),
            tag("span", question, class_="question"),
        ),
        tag(
            "div",
            class_="plot",
            role="img",
            aria_label=drawn,
            data_figure=figures.add(shown),
            style=f"height:{shown.layout['height']}px",
        ),
        tag("p", note, class_="note") if note else None,
        join(*(tag("p", sentence(remark, styles), class_="note") for remark in shown.remarks)),
        table,
        class_="panel wide" if wide else "panel",
        id=identifier,
        role="group",
        aria_labelledby=f"{identifier}-title",
    )


def _is_wide(panel: Panel) -> bool:
    return panel.kind in ("front", "stack", "chain")


def _absent(panels: Sequence[tuple[Panel, str]]) -> Markup | None:
    if not panels:
        return None
    items = [tag("li", tag("strong", panel.title), f": {reason}.") for panel, reason in panels]
    return details(f"Not shown: {plural(len(panels), 'panel')} without figures", tag("ul", *items), class_="absent")
