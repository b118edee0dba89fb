"""A figure of a report, whatever draws it."""

from dataclasses import dataclass

from ampsweep.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What a picture shows, with the question that it answers and its figures as a table."""

    key: str
    """Names it in files and links: lower case, unique within its section."""
    title: str
    question: str = ""
    note: str = ""
    """A hint for reading it."""
    remarks: tuple[str, ...] = ()
    """What it cannot show, a sentence each."""
    table: Table | None = None
    wide: bool = False
