"""Changes of precision in the middle of a training, on the page: the answer, the table of jumps, and all figures."""

from collections.abc import Mapping, Sequence

from ampsweep.analysis.seam_comparison import SeamComparison
from ampsweep.report.columns import Cell
from ampsweep.report.dashboard import Dashboard
from ampsweep.report.page.filters import facts_attribute, filter_keys
from ampsweep.report.page.markup import Markup, join, name, tag
from ampsweep.report.page.tables import cell_of_arm, details, grid, html_table
from ampsweep.report.palette import ArmStyle
from ampsweep.report.seam_tables import RESUMED_IN, SAVED_IN, matrix, seams_table
from ampsweep.report.sentences.seams import HEADING, answer, explanation, heading, seam_lines


def seam_cards(dashboard: Dashboard) -> Markup | None:
    """One card per seam; nothing without seams."""
    if not dashboard.seams:
        return None
    keys = filter_keys(dashboard.comparison.workloads)
    cards = [_card(one.found, dashboard.styles, keys) for one in dashboard.seams]
    return tag("section", tag("h2", HEADING), *cards, id="seams", tabindex="-1")


def _card(found: SeamComparison, styles: Mapping[str, ArmStyle], keys: Sequence[str]) -> Markup:
    columns, rows = matrix(found)
    cells = [[cell_of_arm(arm, styles), *map(_cell, of_row)] for arm, of_row in rows]
    return tag(
        "article",
        tag("h3", name(heading(found))),
        tag("div", tag("p", name(answer(found)), class_="headline"), class_="answer"),
        grid(
            (f"{SAVED_IN} \\ {RESUMED_IN}", *columns),
            (False, *(True for _ in columns)),
            cells,
            caption=f"Jump of the training loss: rows {SAVED_IN}, columns {RESUMED_IN}",
            attributes=[{"data_arm": arm} for arm, _ in rows],
        ),
        tag("p", name(f"{explanation(found)}."), class_="note"),
        tag("ul", *(tag("li", name(f"{line}.")) for line in seam_lines(found))),
        details("All figures", html_table(seams_table(found), styles, caption="All figures")),
        class_="verdict",
        data_facts=facts_attribute(found.facts, keys),
    )


def _cell(cell: Cell) -> Markup:
    return join(tag("span", cell.value), tag("small", cell.detail) if cell.detail else None)
