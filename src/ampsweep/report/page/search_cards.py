"""The largest batches that train, on the page: the answer, its table, its panels and how it was found."""

from collections.abc import Sequence

from ampsweep.report.dashboard import Dashboard, SearchPanels
from ampsweep.report.page.filters import facts_attribute, filter_keys
from ampsweep.report.page.markup import Markup, name, tag
from ampsweep.report.page.panel_figures import Figures, panel_figure
from ampsweep.report.page.tables import details, html_table
from ampsweep.report.search_tables import probes_table, search_table
from ampsweep.report.sentences.batch_limits import HEADING, heading, largest_batches, search_lines


def search_cards(dashboard: Dashboard, figures: Figures) -> Markup | None:
    """One card per search; nothing without searches."""
    if not dashboard.searches:
        return None
    keys = filter_keys(dashboard.comparison.workloads)
    cards = [_card(one, f"b{index}", dashboard, figures, keys) for index, one in enumerate(dashboard.searches)]
    return tag("section", tag("h2", HEADING), *cards, id="largest-batch", tabindex="-1")


def _card(one: SearchPanels, prefix: str, dashboard: Dashboard, figures: Figures, keys: Sequence[str]) -> Markup:
    found = one.data.found
    attributes = [{"data_arm": arm.arm} for arm in found.arms]
    tried = [{"data_arm": arm.arm} for arm in found.arms for _ in arm.probes]
    return tag(
        "article",
        tag("h3", name(heading(found))),
        tag("div", tag("p", name(largest_batches(found)), class_="headline"), class_="answer"),
        html_table(search_table(found), dashboard.styles, caption="Each arm", attributes=attributes),
        tag("ul", *(tag("li", name(f"{line}.")) for line in search_lines(found))),
        tag("div", *(panel_figure(item, prefix, dashboard, figures) for item in one.shown), class_="panels"),
        details(
            "Batches tried",
            html_table(probes_table(found), dashboard.styles, caption="Batches tried", attributes=tried),
        ),
        class_="verdict",
        data_facts=facts_attribute(found.facts, keys),
    )
