"""The comparison as files beside the runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ampsweep.analysis.comparison import Comparison
from ampsweep.record import RunRecord, write_atomically
from ampsweep.report.comparison_json import comparison_json
from ampsweep.report.dashboard import Dashboard, arrange
from ampsweep.report.extent import JSON_NAME
from ampsweep.report.histories import Histories
from ampsweep.report.markdown import markdown
from ampsweep.report.page.document import html

MARKDOWN_NAME: Final = "comparison.md"
HTML_NAME: Final = "comparison.html"


def write_comparison(
    comparison: Comparison, records: Sequence[tuple[Path, RunRecord]], histories: Histories, directory: Path
) -> Dashboard:
    """Write `comparison.json`, `comparison.md` and `comparison.html` into `directory`, each atomically.

    They name run directories as seen from there. What they show is returned.

    Args:
        comparison: as `compare` returned it for `records`.
        records: run directories with their records.
        histories: of these runs, at least the metrics `dashboard.curve_keys()`.
        directory: where the files go.

    Raises:
        OSError: `directory` does not exist or cannot be written.
    """
    dashboard = arrange(comparison, records, histories, directory)
    write_atomically(directory / JSON_NAME, comparison_json(dashboard.comparison))
    panels = [workload.shown for workload in dashboard.workloads]
    over_sizes = [series.shown for series in dashboard.series]
    write_atomically(directory / MARKDOWN_NAME, markdown(dashboard.comparison, panels, over_sizes))
    write_atomically(directory / HTML_NAME, html(dashboard))
    return dashboard
