"""The comparison as one self-contained HTML file, which fetches nothing."""

from collections.abc import Sequence
from typing import Final

from ampsweep.report.dashboard import Dashboard
from ampsweep.report.extent import JSON_NAME, MAX_WORKLOADS
from ampsweep.report.page.filters import facts_attribute, filter_bar, filter_keys
from ampsweep.report.page.markup import Markup, join, name, tag
from ampsweep.report.page.numerics_cards import numerics_section
from ampsweep.report.page.panel_figures import Figures, series_panels, workload_panels
from ampsweep.report.page.run_table import arms_table, environment_tables, runs_table
from ampsweep.report.page.seam_cards import seam_cards
from ampsweep.report.page.search_cards import search_cards
from ampsweep.report.page.shell import page_header, whole_page
from ampsweep.report.page.tables import html_table
from ampsweep.report.page.verdict_cards import overview, verdict_card
from ampsweep.report.problems import Problem, problems_table
from ampsweep.report.rank_tables import dtypes_table
from ampsweep.report.sentences.explaining import comparison_note
from ampsweep.report.sentences.method import method
from ampsweep.report.sentences.ranks import DTYPES
from ampsweep.report.sentences.sizes import section_heading
from ampsweep.text import plural

MAX_OPEN_WORKLOADS: Final = 4
"""With more workloads only the first one's panels are unfolded."""


def html(dashboard: Dashboard) -> str:
    """The document."""
    figures = Figures()
    body = _body(dashboard, figures)
    return whole_page(_title(dashboard), body, figures)


def _title(dashboard: Dashboard) -> str:
    return f"Precision compared with {dashboard.comparison.baseline}"


def _body(dashboard: Dashboard, figures: Figures) -> Markup:
    comparison = dashboard.comparison
    if not dashboard.compared:
        return tag(
            "main",
            tag("h1", _title(dashboard)),
            tag("p", "No runs to compare."),
            *_notes(dashboard),
            _problems(dashboard),
        )
    return join(
        tag("a", "Skip to the verdict", class_="skip", href=f"#{_first_part(dashboard)}"),
        _header(dashboard),
        tag(
            "main",
            _verdicts(dashboard) if dashboard.workloads else None,
            search_cards(dashboard, figures),
            seam_cards(dashboard),
            *_notes(dashboard),
            _problems(dashboard),
            series_panels(dashboard, figures, filter_keys(comparison.workloads)),
            _panels(dashboard, figures) if dashboard.workloads else None,
            numerics_section(dashboard, figures),
            _runs(dashboard),
            _environment(dashboard),
            _method(dashboard),
        ),
    )


def _first_part(dashboard: Dashboard) -> str:
    parts = (("verdict", dashboard.workloads), ("largest-batch", dashboard.searches), ("seams", dashboard.seams))
    return next(key for key, content in parts if content)


def _header(dashboard: Dashboard) -> Markup:
    num_runs = sum(len(data.runs) for data in dashboard.compared)
    counts = [
        plural(num_runs, "run"),
        plural(len(dashboard.styles), "arm"),
        plural(len(dashboard.workloads) + len(dashboard.searches) or len(dashboard.seams), "workload"),
    ]
    series = [one for one in dashboard.series if one.shown]
    parts = [
        ("verdict", "Verdict", dashboard.workloads),
        ("largest-batch", "Largest batch", dashboard.searches),
        ("seams", "Resumed", dashboard.seams),
        ("problems", "Problems", dashboard.problems),
        ("against-size", section_heading([one.data.series for one in series]), series),
        ("panels", "Panels", dashboard.workloads),
        ("numerics", "Numerics", dashboard.numerics),
    ]
    links = [(key, text) for key, text, content in parts if content]
    links += [("runs", "Runs"), ("environment", "Environment"), ("method", "Method")]
    return tag(
        "header",
        page_header(join("Precision compared with ", name(dashboard.comparison.baseline)), ", ".join(counts), links),
        filter_bar(dashboard),
        tag("noscript", tag("p", "The pictures and filters need JavaScript; all figures are in the tables below.")),
    )


def _verdicts(dashboard: Dashboard) -> Markup:
    keys = filter_keys(dashboard.comparison.workloads)
    cards = [verdict_card(one, dashboard.styles, keys) for one in dashboard.drawn]
    return tag(
        "section",
        tag("h2", "Verdict"),
        overview(dashboard.workloads[:MAX_WORKLOADS], keys),
        _rest(dashboard, len(dashboard.workloads[:MAX_WORKLOADS]), "a row"),
        _rest(dashboard, len(dashboard.drawn), "a card"),
        *cards,
        id="verdict",
        tabindex="-1",
    )


def _notes(dashboard: Dashboard) -> list[Markup]:
    return [tag("p", name(f"Note: {comparison_note(note)}."), class_="note") for note in dashboard.comparison.notes]


def _problems(dashboard: Dashboard) -> Markup | None:
    if not dashboard.problems:
        return None
    keys = filter_keys(dashboard.comparison.workloads)
    shown = dashboard.problems[:MAX_WORKLOADS]
    attributes = [_filtered_by(one, keys) for one in shown]
    table = html_table(
        problems_table(shown, with_workload=len(dashboard.compared) > 1),
        dashboard.styles,
        caption="Problems",
        class_="problems",
        attributes=attributes,
    )
    num_left = len(dashboard.problems) - len(shown)
    rest = tag("p", f"{num_left:,} more are in {JSON_NAME}.", class_="note") if num_left else None
    return tag("section", tag("h2", "What went wrong"), table, rest, id="problems")


def _filtered_by(problem: Problem, keys: Sequence[str]) -> dict[str, str]:
    """The attributes by which filters hide a problem; none if its arm or workload is unknown."""
    if problem.arm is None or problem.compared is None:
        return {}
    return {"data_arm": problem.arm, "data_facts": facts_attribute(problem.compared.facts, keys)}


def _panels(dashboard: Dashboard, figures: Figures) -> Markup:
    keys = filter_keys(dashboard.comparison.workloads)
    num_open = len(dashboard.workloads) if len(dashboard.workloads) <= MAX_OPEN_WORKLOADS else 1
    rest = _rest(dashboard, len(dashboard.drawn), "panels")
    workloads = [
        workload_panels(one, index, dashboard, figures, keys, open_=index < num_open)
        for index, one in enumerate(dashboard.drawn)
    ]
    return tag("section", tag("h2", "Panels"), rest, *workloads, id="panels")


def _rest(dashboard: Dashboard, num_shown: int, what: str) -> Markup | None:
    """Say how many workloads have `what`, unless all have."""
    if num_shown == len(dashboard.workloads):
        return None
    told = f"The first {num_shown} of {len(dashboard.workloads):,} workloads have {what} here; all are in {JSON_NAME}."
    return tag("p", told, class_="note")


def _runs(dashboard: Dashboard) -> Markup:
    runs = [run for data in dashboard.compared for run, _ in data.listed]
    dtypes = dtypes_table(dashboard.comparison.workloads)
    return tag(
        "section",
        tag("h2", "Runs"),
        html_table(arms_table(runs), dashboard.styles, caption="What the arms are"),
        None if dtypes is None else html_table(dtypes, dashboard.styles, caption=f"The {DTYPES}"),
        *runs_table(dashboard),
        id="runs",
    )


def _environment(dashboard: Dashboard) -> Markup:
    common, differing = environment_tables([run for data in dashboard.compared for run, _ in data.listed])
    parts = [
        html_table(table, dashboard.styles, caption=caption)
        for table, caption in ((differing, "What differs between runs"), (common, "The same for all runs"))
        if table.rows
    ]
    content = parts or [tag("p", "No run recorded its environment.")]
    return tag("section", tag("h2", "Environment"), *content, id="environment")


def _method(dashboard: Dashboard) -> Markup:
    items = [tag("li", tag("strong", figure), f": {how}") for figure, how in method(dashboard.comparison)]
    return tag("section", tag("h2", "How each figure was taken"), tag("ul", *items), id="method")
