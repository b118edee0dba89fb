"""The comparison as a Markdown document."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.analysis.run_entry import RunEntry
from ampsweep.analysis.seam_comparison import SeamComparison
from ampsweep.analysis.search_comparison import SearchComparison
from ampsweep.analysis.size_series import SizeSeries
from ampsweep.report.columns import ABSENT, Cell, columns_for
from ampsweep.report.dashboard import PanelShown
from ampsweep.report.dtype_step_table import dtype_step_table
from ampsweep.report.extent import JSON_NAME, first_rows
from ampsweep.report.rank_tables import arms_with_ranks, dtypes_table, lines_of_ranks, ranks_table
from ampsweep.report.seam_tables import matrix_table, seams_table
from ampsweep.report.search_tables import probes_table, search_table
from ampsweep.report.sentences.batch_limits import HEADING, heading, largest_batches, search_lines
from ampsweep.report.sentences.dtype_steps import HEADING as STEPS
from ampsweep.report.sentences.explaining import arm_note, comparison_note, unpaired
from ampsweep.report.sentences.file_problems import file_problems
from ampsweep.report.sentences.method import method
from ampsweep.report.sentences.ranks import DTYPES
from ampsweep.report.sentences.ranks import HEADING as RANKS
from ampsweep.report.sentences.recommending import conclusion, recommendation
from ampsweep.report.sentences.seams import HEADING as SEAMS
from ampsweep.report.sentences.seams import answer, explanation, seam_lines
from ampsweep.report.sentences.seams import heading as seam_heading
from ampsweep.report.sentences.sizes import series_heading, series_lines
from ampsweep.report.size_tables import size_table
from ampsweep.report.table import Table
from ampsweep.report.verdict_lines import VerdictLine, verdict_lines

_MAX_RUNS: Final = 500
"""Rows of the runs of one workload."""
_SPECIAL: Final = re.compile(r"([\\`*<>|#~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:]))")
"""Characters that Markdown would take as markup; an underscore within a word and a lone bracket are none."""


def markdown(
    comparison: Comparison,
    panels: Sequence[Sequence[PanelShown]] = (),
    over_sizes: Sequence[Sequence[PanelShown]] = (),
) -> str:
    """The document: verdict, table, conclusion, notes, panels and runs of each workload, then how it was all taken.

    Args:
        comparison: with run directories named as seen from the document.
        panels: of each workload, in the order of the comparison's.
        over_sizes: of each series of sizes, in the order of the comparison's.
    """
    lines = [f"# Precision compared with {plain(comparison.baseline)}", ""]
    if not comparison.compared:
        lines += ["No runs to compare.", ""]
    for index, workload in enumerate(comparison.workloads):
        lines += _workload(workload, panels[index] if panels else ())
    for found in comparison.searches:
        lines += _search(found)
    for seam in comparison.seams:
        lines += [*_seam(seam), *_runs(seam.runs)]
    for index, series in enumerate(comparison.series):
        lines += [*_series(series, comparison), *_panels(over_sizes[index] if over_sizes else ())]
    lines += _dtypes(comparison)
    lines += _list("Notes", [plain(comparison_note(note)) for note in comparison.notes])
    lines += _list("Missing", [plain(f"{sentence}.") for sentence in file_problems(comparison.file_problems)])
    lines += _method(comparison)
    return "\n".join(lines).rstrip() + "\n"


def verdict_markdown(comparison: Comparison) -> str:
    """The findings with the notes: for a place that shows panels and runs itself."""
    lines = [line for workload in comparison.workloads for line in _findings(workload)]
    lines += [line for found in comparison.searches for line in _search(found)]
    lines += [line for found in comparison.seams for line in _seam(found)]
    lines += [line for series in comparison.series for line in _series(series, comparison)]
    lines += _list("Notes", [plain(comparison_note(note)) for note in comparison.notes])
    return "\n".join(lines).rstrip() + "\n"


def _workload(workload: WorkloadComparison, panels: Sequence[PanelShown]) -> list[str]:
    unpaired_runs = [run for run in workload.runs if run.not_paired is not None]
    shown = first_rows(unpaired_runs, lambda run: run.arm, _MAX_RUNS)
    not_paired = [
        f"{plain(run.arm)}, seed {run.seed} ({plain(run.directory)}): {plain(unpaired(run.not_paired))}"
        for run in shown
        if run.not_paired is not None
    ]
    if len(shown) < len(unpaired_runs):
        not_paired.append(f"{len(unpaired_runs) - len(shown):,} more runs, which are in {JSON_NAME}")
    return [
        *_findings(workload),
        *_list("Runs in no pair", not_paired, level=3),
        *_panels(panels),
        *_runs(workload.runs),
    ]


def _findings(workload: WorkloadComparison) -> list[str]:
    notes = [f"{plain(arm.arm)}: {plain(arm_note(note))}" for arm in workload.arms for note in arm.notes]
    columns, lines = columns_for(workload.arms), verdict_lines(workload)
    return [
        f"## {plain(workload.title)}",
        "",
        f"**{plain(recommendation(workload.verdict))}**",
        "",
        *(f"- {_said(line, topic=True)}" for line in lines if line.topic not in ("bytes", "why")),
        "",
        *_table(
            [column.header for column in columns],
            [column.numeric for column in columns],
            [[_cell(column.render(arm)) for column in columns] for arm in workload.arms],
        ),
        "",
        plain(conclusion(workload)),
        "",
        *_steps(workload),
        *_ranks(workload),
        *_list("Why", [_said(line) for line in lines if line.topic == "why"], level=3),
        *_list("Notes", notes, level=3),
    ]


def _steps(workload: WorkloadComparison) -> list[str]:
    steps = workload.verdict.steps
    return [f"### {STEPS}", "", *_plain_table(dtype_step_table(steps)), ""] if steps else []


def _ranks(workload: WorkloadComparison) -> list[str]:
    named = arms_with_ranks(workload)
    if not named:
        return []
    lines = [f"- {plain(arm)}: {plain(line)}" for arm, line in lines_of_ranks(workload)]
    return [f"### {RANKS}", "", *_plain_table(ranks_table(named, categories=True)), "", *lines, ""]


def _dtypes(comparison: Comparison) -> list[str]:
    table = dtypes_table(comparison.workloads)
    return [] if table is None else [f"## {DTYPES[:1].upper()}{DTYPES[1:]}", "", *_plain_table(table), ""]


def _series(series: SizeSeries, comparison: Comparison) -> list[str]:
    return [
        f"## {plain(series_heading(series))}",
        "",
        *_plain_table(size_table(series, comparison)),
        "",
        *_list("", [plain(f"{line}.") for line in series_lines(series)]),
    ]


def _search(found: SearchComparison) -> list[str]:
    return [
        f"## {HEADING}: {plain(heading(found))}",
        "",
        f"**{plain(largest_batches(found))}**",
        "",
        *_plain_table(search_table(found)),
        "",
        *(f"- {plain(line)}" for line in search_lines(found)),
        "",
        "### Batches tried",
        "",
        *_plain_table(probes_table(found)),
        "",
        *_runs(found.runs),
    ]


def _seam(found: SeamComparison) -> list[str]:
    return [
        f"## {SEAMS}: {plain(seam_heading(found))}",
        "",
        f"**{plain(answer(found))}**",
        "",
        *_plain_table(matrix_table(found)),
        "",
        f"{plain(explanation(found))}.",
        "",
        *(f"- {plain(line)}." for line in seam_lines(found)),
        "",
        *_plain_table(seams_table(found)),
        "",
    ]


def _runs(runs: Sequence[RunEntry]) -> list[str]:
    headers, numeric = ["arm", "seed", "status", "directory", "W&B"], [False, True, False, False, False]
    shown = first_rows(runs, lambda run: run.arm, _MAX_RUNS)
    rest = [f"{len(runs) - len(shown):,} more runs are in {JSON_NAME}.", ""] if len(shown) < len(runs) else []
    return ["### Runs", "", *_table(headers, numeric, [_run(run) for run in shown]), "", *rest]


def _said(line: VerdictLine, *, topic: bool = False) -> str:
    about = f"**{line.topic}** " if topic else ""
    return about + (f"{plain(line.arm)}: " if line.arm is not None else "") + plain(line.text)


def _method(comparison: Comparison) -> list[str]:
    how = [f"**{figure}**: {plain(explanation)}" for figure, explanation in method(comparison)]
    return _list("How each figure was taken", how)


def _panels(panels: Iterable[PanelShown]) -> list[str]:
    """The panels whose figures are few enough for a table."""
    lines = []
    for panel, shown in panels:
        if shown.table is not None:
            lines += [f"### {panel.title}", "", *_plain_table(shown.table), ""]
            lines += [f"{plain(remark)}.\n" for remark in shown.remarks]
    return lines


def _run(run: RunEntry) -> list[str]:
    place = run.tracked_at
    if place is None:
        tracked = ABSENT
    elif place.startswith(("https://", "http://")):
        tracked = f"<{place}>" if re.fullmatch(r"[^\s<>|]+", place) else plain(place)
    else:
        tracked = plain(place)
    status = run.status if run.contaminated is None else f"{run.status}, contaminated"
    return [plain(run.arm), str(run.seed), status, plain(run.directory), tracked]


def _cell(cell: Cell) -> str:
    between = "" if not cell.detail else " " if cell.detail.startswith("[") else ", "
    return plain(f"{cell.value}{between}{cell.detail}")


def _plain_table(table: Table) -> list[str]:
    headers = [plain(header) for header in table.headers]
    return _table(headers, table.numeric, [[plain(cell) for cell in row] for row in table.rows])


def _table(headers: Sequence[str], numeric: Sequence[bool], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---:" if right else "---" for right in numeric]
    return [f"| {' | '.join(cells)} |" for cells in [headers, rule, *rows]]


def _list(title: str, items: Sequence[str], *, level: int = 2) -> list[str]:
    head = [f"{'#' * level} {title}", ""] if title else []
    return [*head, *(f"- {item}" for item in items), ""] if items else []


def plain(text: str) -> str:
    """Escape `text` so that Markdown shows it literally, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
