"""Limits of what a document draws and lists, so that a page of many runs stays small."""

from typing import Final

JSON_NAME: Final = "comparison.json"  # the file without limits
MAX_WORKLOADS: Final = 30  # workloads with a verdict and panels
MAX_LINES: Final = 8  # runs of an arm that have a line each; beyond that there is only their band
MAX_POINTS: Final = 300  # points of a curve: about one in two or three pixels
MAX_DOTS: Final = 200  # dots of an arm in one panel
MAX_ROWS: Final = 1_000  # rows of a table


def rows_left_out(num_rows: int, what: str) -> str:
    """A sentence on the rows beyond `MAX_ROWS`; empty if there are none."""
    more = num_rows - MAX_ROWS
    return f"{more:,} more {what} are in {JSON_NAME}." if more > 0 else ""
