"""A document on standard output: for people, or in the format that was asked for."""

from typing import Final

from ampsweep.report.console import show
from ampsweep.report.data_formats import FORMATS
from ampsweep.report.document import Document
from ampsweep.report.terminal import Terminal

CONSOLE: Final = "console"


def formats() -> tuple[str, ...]:
    """The formats that a command line may ask for, the first one if it asks for none."""
    return CONSOLE, *FORMATS


def put_out(document: Document, chosen: str = CONSOLE) -> None:
    """Print a document and nothing else."""
    if chosen == CONSOLE:
        show(document, Terminal())
    else:
        print(FORMATS[chosen](document), end="")
