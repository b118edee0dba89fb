"""Limits of what a document draws and lists, so that a page of very many runs stays small."""

from typing import Final

JSON_NAME: Final = "comparison.json"
"""The file that has everything."""
MAX_WORKLOADS: Final = 30
"""Workloads with a verdict and panels of their own, from the first."""
MAX_LINES: Final = 8
"""An arm with more runs has their band alone."""
MAX_POINTS: Final = 300
"""Points of a curve: about one for two or three pixels."""
MAX_DOTS: Final = 200
"""Dots of an arm in one panel."""
MAX_ROWS: Final = 1_000
"""Rows of a table."""


def rows_left_out(num_rows: int, what: str) -> str:
    """A sentence on the rows that are not shown of a table of `num_rows`; empty if all are."""
    more = num_rows - MAX_ROWS
    return f"{more:,} more {what} are in {JSON_NAME}." if more > 0 else ""
