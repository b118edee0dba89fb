"""The comparison of runs as a document."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from ampsweep.analysis.candidates import Unsupported, Worse
from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.analysis.headline import known
from ampsweep.analysis.method_notes import method
from ampsweep.analysis.run_findings import NotCompleted, RunFinding, cannot_run, statuses_text
from ampsweep.analysis.swept_series import Series
from ampsweep.records import write_atomically
from ampsweep.report.arm_table import arms_tables, methods
from ampsweep.report.compare import Compared
from ampsweep.report.data_formats import as_json
from ampsweep.report.document import Code, Document, Item, Items, Prose, Section, items_of, section_of
from ampsweep.report.figure import Figure
from ampsweep.report.figures.bars import by_arm, stack
from ampsweep.report.figures.lines import SeriesData, against, curves, effects_against
from ampsweep.report.figures.narrowing import narrowing
from ampsweep.report.figures.pairs import front, pairs
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.numerics_shown import numerics_sections
from ampsweep.report.palette import ArmStyle, arm_styles
from ampsweep.report.panels import PANELS, SECTIONS, Kind, Panel
from ampsweep.report.rank_tables import ranks_table, strategies_table
from ampsweep.report.run_tables import (
    arm_settings_table,
    dtypes_table,
    environment_tables,
    problems_table,
    resumed_table,
    runs_table,
)
from ampsweep.report.search_section import largest_batches_table, search_section
from ampsweep.report.tables import ABSENT, COMPARISON, JSON_NAME, Columns, Scalar, Table, table_of, text_column
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import as_sentence, plural

SCHEMA: Final = 6
MARKDOWN_NAME: Final = f"{COMPARISON}.md"
_MAX_WORKLOADS: Final = 30  # workloads with a verdict and panels
_MAX_OPEN: Final = 4  # with more workloads only the panels of the first are unfolded

Draw = Callable[[Panel, Any, Mapping[str, ArmStyle]], Figure | None]
"""Draws a kind of panel from `WorkloadData` or `SeriesData`; None if there is nothing to show."""

OF_WORKLOAD: Final[dict[Kind, Draw]] = {
    "front": front,
    "curves": curves,
    "by_arm": by_arm,
    "stack": stack,
    "pairs": pairs,
    "narrowing": narrowing,
}
OF_SERIES: Final[dict[Kind, Draw]] = {"against": against, "effects_against": effects_against}
"""Kinds that show workloads of several sizes."""


def comparison_document(compared: Compared, directory: Path | None, panels: Sequence[Panel] = PANELS) -> Document:
    """The comparison with its panels and runs.

    Args:
        directory: the runs' directories are shown relative to it. None: as they were given.
        panels: in the order in which they are shown within their sections.
    """
    comparison = compared.comparison if directory is None else compared.comparison.relative_to(directory)
    panels = [panel.of(comparison.keys) for panel in panels]
    data = [WorkloadData(workload, compared.histories, comparison.max_pairs) for workload in comparison.workloads]
    shown = data[:_MAX_WORKLOADS]
    styles = arm_styles(arm for workload in comparison.compared for arm in workload.names)
    how = [Item(text, f"{figure}:") for figure, text in (*methods(comparison.workloads), *method(comparison))]
    series = [_series(found, comparison, data, styles, panels) for found in comparison.series]
    resumed = [
        Section(title=workload.title, blocks=(resumed_table(workload.resumed),))
        for workload in comparison.workloads
        if workload.resumed
    ]
    runs = (arm_settings_table(comparison), dtypes_table(comparison), runs_table(comparison))
    sections = [
        _verdicts(comparison.workloads),
        section_of("Largest batch that trains", "largest-batch", map(search_section, comparison.searches)),
        section_of("Saved in one precision, resumed in another", "resumed", resumed),
        section_of("Notes", "", items_of([_item(note.sentence) for note in comparison.notes])),
        section_of("What went wrong", "problems", [problems_table(comparison)]),
        section_of("Against each other", "series", series),
        section_of("Panels", "panels", _panels(shown, styles, panels), on_screen=False),
        section_of("Numerics", "numerics", chain.from_iterable(map(numerics_sections, shown)), on_screen=False),
        section_of("Runs", "runs", runs, on_screen=False),
        section_of("Environment", "environment", environment_tables(comparison), on_screen=False),
        section_of("How each figure was taken", "method", items_of(how), on_screen=False),
    ]
    if not comparison.compared:
        sections.insert(0, Section(blocks=(Prose("No runs to compare.", "headline"),)))
    num_runs = sum(len(workload.runs) for workload in comparison.compared)
    counts = (plural(num_runs, "run"), plural(len(styles), "arm"), plural(len(comparison.compared), "workload"))
    facts = {field.name: getattr(comparison, field.name) for field in fields(comparison) if field.repr}
    return Document(
        title=f"Precision compared with {comparison.baseline}",
        subtitle=", ".join(counts),
        sections=tuple(section for section in sections if section is not None),
        arms=styles,
        summary=_summary(comparison, num_runs),
        data={"schema": SCHEMA} | facts,
    )


def write_comparison(document: Document, directory: Path, stem: str = COMPARISON) -> None:
    """Write `STEM.json`, `STEM.md` and `STEM.html` into `directory`, each atomically.

    Raises:
        OSError: `directory` does not exist or cannot be written.
    """
    for ending, text in (("json", as_json), ("md", markdown), ("html", html)):
        write_atomically(directory / f"{stem}.{ending}", text(document))


def _verdicts(workloads: Sequence[WorkloadComparison]) -> Section | None:
    cards: list[Section | Prose | Table] = [_overview(workloads)] if len(workloads) > 1 else []
    cards += map(_card, workloads[:_MAX_WORKLOADS])
    if (num_left := len(workloads) - _MAX_WORKLOADS) > 0:
        cards.append(Prose(f"{plural(num_left, 'more workload')} in {JSON_NAME}.", "note"))
    return section_of("Verdict", "verdict", cards)


def _card(workload: WorkloadComparison) -> Section:
    verdict, lines = workload.verdict, list(_lines(workload))
    answer = verdict.sentence if verdict.command is None else f"{verdict.sentence[:-1]}:"
    blocks: list[Any] = [Prose(answer, "headline", arm=verdict.recommendation.arm)]
    blocks += [Code(verdict.command)] if verdict.command is not None else []
    first, further = arms_tables(workload)
    blocks += [first] if first.rows else []
    blocks += items_of(item for is_evidence, item in lines if is_evidence)
    details: list[Any] = [further] if further.rows and len(further.shown().columns) > 1 else []
    details += items_of(item for is_evidence, item in lines if not is_evidence)
    details += items_of([_item(reason.sentence, arm=reason.arm) for reason in verdict.reasons], "Why")
    blocks += [Section(title="Further figures", blocks=tuple(details), on_screen=False)] if details else []
    if ranks := [(arm.arm, arm.ranks) for arm in workload.arms if arm.ranks is not None]:
        of_ranks = tuple(_item(of.sentence, arm=arm) for arm, of in ranks)
        blocks.append(Section(title="Ranks", blocks=(Items(of_ranks), ranks_table(ranks))))
    return Section(title=workload.title, kind="card", blocks=tuple(blocks))


def _lines(workload: WorkloadComparison) -> Iterator[tuple[bool, Item]]:
    """Lines beside the table, topic by topic, and whether it takes them to trust the verdict. A sentence about several
    arms is a single line."""
    verdict, front = workload.verdict, workload.verdict.front
    judged, is_beaten = verdict.arms, front is not None and any(arm.beaten for arm in front.arms)
    lines = [(True, "parity", arm.arm, parity.sentence) for arm in judged for parity in arm.judgements.parities]
    lines += [
        (True, "unsupported", arm.arm, note.cause or "on this device")
        for arm in workload.arms
        for note in arm.notes
        if isinstance(note, NotCompleted) and cannot_run(arm.statuses)
    ]
    refused = {arm.arm: arm.refusal for arm in judged if not isinstance(arm.refusal, Unsupported | Worse)}  # see above
    refused[verdict.recommendation.baseline] = verdict.recommendation.baseline_refusal
    lines += [(True, "refused", arm, refusal.sentence) for arm, refusal in refused.items() if refusal is not None]
    lines += [] if workload.on_gpu is None else [(True, "predicted", "", workload.on_gpu.sentence)]
    lines += [(True, "note", "", caution.sentence) for caution in workload.cautions]
    lines += [(False, "time to loss", arm.arm, arm.time_to_loss.sentence) for arm in judged if arm.time_to_loss]
    lines += [(False, "bytes", arm.arm, arm.waterfall.sentence) for arm in judged if arm.waterfall]
    lines += [] if front is None else [(is_beaten, "Pareto", "", front.sentence)]
    lines += [(False, "predicted", "", said) for said in (workload.predicted,) if said is not None]
    lines += [(False, "pitfall", ", ".join(pitfall.arms), pitfall.sentence) for pitfall in verdict.pitfalls]
    lines += [
        (True, "note", arm.arm, note.sentence)
        for arm in workload.arms
        for note in arm.notes
        if not (isinstance(note, RunFinding) and note.consequence)  # see the problems
    ]
    arms = defaultdict[tuple[bool, str, str], list[str]](list)
    for is_evidence, label, arm, sentence in lines:
        arms[is_evidence, label, sentence].append(arm)
    for (is_evidence, label, sentence), of_arms in arms.items():
        yield is_evidence, _item(sentence, label, ", ".join(of_arms) or None)


def _overview(workloads: Sequence[WorkloadComparison]) -> Table:
    arms = dict.fromkeys(arm.arm for workload in workloads for arm in workload.verdict.arms)
    columns: Columns[WorkloadComparison] = [
        text_column("workload", lambda workload: workload.title),
        text_column("train in", lambda workload: workload.verdict.recommendation.arm or "open"),
        *(text_column(arm, partial(_in_short, arm)) for arm in arms),
    ]
    title = workloads[0].keys.named("All workloads: speed, peak memory and parity of each arm")
    return table_of("overview", columns, workloads, title=title, what="workloads")


def _in_short(arm: str, workload: WorkloadComparison) -> str:
    judged = next((candidate.judgements for candidate in workload.verdict.arms if candidate.arm == arm), None)
    return ABSENT if judged is None else known(judged) or statuses_text(judged.figures.statuses)


def _item(clause: str, label: str = "", arm: str | None = None) -> Item:
    """A line of a list: a sentence, or a clause after its label or arm."""
    text = as_sentence(clause)
    return Item(text, label, arm) if not (label or arm) else Item(clause[:1] + text[1:], label, arm)


def _series(
    series: Series,
    comparison: Comparison,
    data: Sequence[WorkloadData],
    styles: Mapping[str, ArmStyle],
    panels: Sequence[Panel],
) -> Section:
    """A series of words (strategies) with a table, or a series of sizes with its panels."""
    blocks: list[Any] = [strategies_table(series, comparison)] if series.in_words else []
    blocks += items_of([_item(line) for line in series.lines])
    if not series.in_words:
        of = SeriesData(series, tuple(data[place] for place in series.workloads))
        blocks += _drawn(panels, of, styles).values()
    return Section(title=series.heading, blocks=tuple(blocks))


def _drawn(
    panels: Iterable[Panel], data: WorkloadData | SeriesData, styles: Mapping[str, ArmStyle]
) -> dict[Panel, Figure]:
    """The panels of a workload, or of workloads of several sizes, that have something to show."""
    draw = OF_SERIES if isinstance(data, SeriesData) else OF_WORKLOAD
    figures = {panel: draw[panel.kind](panel, data, styles) for panel in panels if panel.kind in draw}
    return {panel: figure for panel, figure in figures.items() if figure is not None}


def _panels(
    workloads: Sequence[WorkloadData], styles: Mapping[str, ArmStyle], panels: Sequence[Panel]
) -> Iterator[Section]:
    for place, workload in enumerate(workloads):
        figures = _drawn(panels, workload, styles)
        blocks = [
            Section(title=heading, blocks=tuple(found))
            for heading in SECTIONS
            if (found := [figure for panel, figure in figures.items() if panel.section == heading])
        ]
        folded = len(workloads) > _MAX_OPEN and place > 0
        yield Section(title=workload.compared.title, blocks=tuple(blocks), folded=folded)


def _summary(comparison: Comparison, num_runs: int) -> dict[str, Scalar]:
    """The verdict, and the arms' figures of a single workload or search: several would share their names."""
    workloads = comparison.workloads
    answers = [workload.verdict.sentence for workload in workloads]
    answers += [search.sentence for search in comparison.searches]
    summary: dict[str, Scalar] = {
        "status": "completed",
        "verdict": "\n".join(answers),
        "num_workloads": len(comparison.compared),
        "num_runs": num_runs,
    }
    if workloads:
        recommended = [workload.verdict.recommendation.arm or "undecided" for workload in workloads]
        summary["recommended_arm"] = ", ".join(recommended)
    if len(comparison.compared) == 1:
        tables = arms_tables(workloads[0]) if workloads else [largest_batches_table(comparison.searches[0])]
        for of, row in ((table, row) for table in tables for row in table.rows):
            for column, cell in zip(of.columns, row.cells, strict=True):
                if column.numeric and isinstance(cell.value, int | float):
                    summary[f"{row.arm}/{column.key}"] = cell.value
    return summary
