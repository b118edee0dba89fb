"""Processor time, peak memory and sizes of the comparison of the runs in a directory, part by part, as JSON.

python tests/benchmarks/many_runs_measured.py DIRECTORY
"""

import io
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ampsweep.report.compare import compare_directories
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.console import show
from ampsweep.report.data_formats import as_json
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.terminal import Terminal

MIB = 2**20


def measured(tree: Path) -> dict[str, float]:
    """Seconds of processor time and peak memory of each part, and the sizes of what it writes."""
    figures: dict[str, float] = {"rss_mib_before": _peak_mib()}

    @contextmanager
    def part(name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        figures[f"{name}_s"] = round(time.process_time() - began, 3)
        figures[f"{name}_peak_mib"] = round(_peak_mib() - figures["rss_mib_before"], 1)

    with part("compare"):
        compared = compare_directories([tree])
    with part("document"):
        document = comparison_document(compared, tree)
    written = {}
    with part("json"):
        written["comparison.json"] = as_json(document)
    with part("markdown"):
        written["comparison.md"] = markdown(document)
    with part("html"):
        written["comparison.html"] = html(document)
    with part("terminal"):
        printed = io.StringIO()
        show(document, Terminal(file=printed, width=110))
        written["terminal.txt"] = printed.getvalue()
    for name, text in written.items():
        (tree / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        figures[f"{name}_mib"] = round((tree / name).stat().st_size / MIB, 3)
    figures["all_s"] = round(sum(value for key, value in figures.items() if key.endswith("_s")), 3)
    return figures


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]))))
