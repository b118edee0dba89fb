"""The numerics of runs on the page: the headroom in words, a heat map for each kind of tensor."""

from collections.abc import Mapping

from ampsweep.report.dashboard import Dashboard
from ampsweep.report.numerics_shown import MAP_NOTE, TITLES, NumericsShown
from ampsweep.report.page.filters import facts_attribute, filter_keys
from ampsweep.report.page.markup import Markup, arm_name, join, name, stated, tag
from ampsweep.report.page.panel_figures import Figures, figure_card
from ampsweep.report.page.tables import details, html_table
from ampsweep.report.palette import ArmStyle


def numerics_section(dashboard: Dashboard, figures: Figures) -> Markup | None:
    """A card for each arm of each workload that looked at its numerics; nothing without any."""
    if not dashboard.numerics:
        return None
    keys = filter_keys(dashboard.comparison.workloads)
    cards: list[Markup] = []
    for place, one in enumerate(dashboard.numerics):
        for arm, seed, shown in one.arms:
            heading = tag("h3", name(one.data.workload.title), ": ", _arm(arm, dashboard.styles), f", seed {seed}")
            cards.append(
                tag(
                    "details",
                    tag("summary", heading),
                    numerics_card(shown, f"n{place}-{len(cards)}", figures, dashboard.styles),
                    class_="workload",
                    open=not cards,
                    data_arm=arm,
                    data_facts=facts_attribute(one.data.workload.facts, keys),
                )
            )
    return tag("section", tag("h2", "Numerics"), *cards, id="numerics")


def numerics_card(shown: NumericsShown, prefix: str, figures: Figures, styles: Mapping[str, ArmStyle] = {}) -> Markup:
    """The numerics of one run; `prefix` tells its figures from those of others."""
    if shown.problem is not None:
        return tag("p", stated(shown.problem), class_="note")
    maps = [
        figure_card(
            figure,
            figures,
            identifier=f"{prefix}-{kind}",
            title=TITLES[kind][0],
            question=TITLES[kind][1],
            styles=styles,
        )
        for kind, figure in shown.maps
    ]
    nonfinite = None
    if shown.nonfinite is not None:
        caption = "Parameters with inf or NaN in their gradients, in backward order"
        nonfinite = details(caption, html_table(shown.nonfinite, styles, caption=caption), open_=True)
    return join(
        tag("ul", *(tag("li", stated(line)) for line in shown.lines)) if shown.lines else None,
        nonfinite,
        tag("p", MAP_NOTE, class_="note") if maps else None,
        tag("div", *maps, class_="panels maps"),
    )


def _arm(arm: str, styles: Mapping[str, ArmStyle]) -> Markup:
    return arm_name(arm, styles[arm]) if arm in styles else name(arm)
