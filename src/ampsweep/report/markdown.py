"""The comparison as a Markdown document."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ampsweep.analysis.comparison import Comparison, RunEntry, WorkloadComparison
from ampsweep.report.columns import ABSENT, COLUMNS, Cell, columns_for

_SPECIAL: Final = re.compile(r"([\\`*<>|#~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:]))")
"""Characters that Markdown would take as markup; an underscore within a word and a lone bracket are none."""


def markdown(comparison: Comparison) -> str:
    """The document: table, conclusion, notes and runs of each workload, then how the figures were taken."""
    lines = [f"# Precision compared with {_plain(comparison.baseline)}", ""]
    if not comparison.workloads:
        lines += ["No runs to compare.", ""]
    for workload in comparison.workloads:
        lines += _workload(workload)
    lines += _list("Notes", [_plain(note) for note in comparison.notes])
    lines += _method(comparison)
    return "\n".join(lines).rstrip() + "\n"


def _workload(workload: WorkloadComparison) -> list[str]:
    notes = [f"{_plain(arm.arm)}: {_plain(note)}" for arm in workload.arms for note in arm.notes]
    not_paired = [
        f"{_plain(run.arm)}, seed {run.seed} ({_plain(run.directory)}): {_plain(run.not_paired)}"
        for run in workload.runs
        if run.not_paired is not None
    ]
    columns = columns_for(workload.arms)
    return [
        f"## {_plain(workload.title)}",
        "",
        *_table(
            [column.header for column in columns],
            [column.numeric for column in columns],
            [[_cell(column.render(arm)) for column in columns] for arm in workload.arms],
        ),
        "",
        f"**{_plain(workload.conclusion.sentence)}**",
        "",
        *_list("Notes", notes, level=3),
        *_list("Runs in no pair", not_paired, level=3),
        "### Runs",
        "",
        *_table(
            ["arm", "seed", "status", "directory", "W&B"],
            [False, True, False, False, False],
            [_run(run) for run in workload.runs],
        ),
        "",
    ]


def _method(comparison: Comparison) -> list[str]:
    workloads = comparison.workloads
    used = [column for column in COLUMNS if any(column in columns_for(workload.arms) for workload in workloads)]
    how = [f"**{column.header}**: {_plain(column.explanation)}." for column in used if column.explanation]
    how.append(
        f"A loss gap is held against a margin of {comparison.margin_pct:g}% of the baseline's loss, "
        "and against the standard deviation of the baseline's own loss over seeds. "
        "Lying inside either is no proof that two arms learn the same."
    )
    return _list("How each figure was taken", how)


def _run(run: RunEntry) -> list[str]:
    place = run.tracked_at
    if place is None:
        tracked = ABSENT
    elif place.startswith(("https://", "http://")):
        tracked = f"<{place}>" if re.fullmatch(r"[^\s<>|]+", place) else _plain(place)
    else:
        tracked = _plain(place)
    return [_plain(run.arm), str(run.seed), run.status, _plain(run.directory), tracked]


def _cell(cell: Cell) -> str:
    return _plain(f"{cell.value} {cell.detail}".rstrip())


def _table(headers: Sequence[str], numeric: Sequence[bool], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---:" if right else "---" for right in numeric]
    return [f"| {' | '.join(cells)} |" for cells in [headers, rule, *rows]]


def _list(title: str, items: Sequence[str], *, level: int = 2) -> list[str]:
    return [f"{'#' * level} {title}", "", *(f"- {item}" for item in items), ""] if items else []


def _plain(text: str) -> str:
    """`text` that Markdown shows as it is: no markup, no second line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
