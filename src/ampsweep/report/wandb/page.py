"""A document as the content of a W&B run: its tables with their data, its figures, and its page as a file."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ampsweep.report.data_formats import as_rows
from ampsweep.report.document import Document, blocks_of, tables
from ampsweep.report.figure import Figure
from ampsweep.tracking.wandb.comparison_run import ComparisonPage

_MAX_OF_A_KEY: Final = 4
"""Figures of one key, such as the panel of each workload, that are sent; the page has all."""


def wandb_page(
    document: Document, *, id: str, name: str, config: Mapping[str, Any], tags: Sequence[str], html: Path
) -> ComparisonPage:
    """The content of the run `id`.

    Args:
        html: the document as a page, which is sent as it is.
    """
    figures = [block for block in blocks_of(document.sections) if isinstance(block, Figure)]
    of_figures = {figure.key for figure in figures}
    return ComparisonPage(
        id=id,
        name=name,
        config=config,
        summary=document.summary,
        tables={one.key: as_rows(one) for one in tables(document) if one.rows and one.key not in of_figures},
        figures=_drawn(figures),
        html=html,
        tags=tuple(tags),
    )


def _drawn(figures: Iterable[Figure]) -> dict[str, Mapping[str, Any]]:
    """Plotly's JSON by key in W&B: `panels/memory-saved`, and of a key's second figure `panels 2/memory-saved`."""
    found: dict[str, Mapping[str, Any]] = {}
    counts: dict[str, int] = {}
    for figure in figures:
        number = counts[figure.key] = counts.get(figure.key, 0) + 1
        if number <= _MAX_OF_A_KEY:
            found[f"panels{'' if number == 1 else f' {number}'}/{figure.key}"] = figure.plotly()
    return found
