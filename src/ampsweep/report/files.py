"""The comparison as files beside the runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ampsweep.analysis.comparison import Comparison
from ampsweep.record import write_atomically
from ampsweep.report.markdown import markdown

JSON_NAME: Final = "comparison.json"
MARKDOWN_NAME: Final = "comparison.md"


def comparison_json(comparison: Comparison) -> str:
    """The comparison as one object of strict JSON (no NaN); a figure that was not measured is null."""
    return json.dumps(asdict(comparison), indent=1, allow_nan=False) + "\n"


def write_comparison(comparison: Comparison, directory: Path) -> None:
    """Write `comparison.json` and `comparison.md` into `directory`, each atomically; run directories relative to it.

    Raises:
        OSError: `directory` does not exist or cannot be written.
    """
    seen_from_there = comparison.relative_to(directory)
    write_atomically(directory / JSON_NAME, comparison_json(seen_from_there))
    write_atomically(directory / MARKDOWN_NAME, markdown(seen_from_there))
