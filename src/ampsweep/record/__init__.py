"""The run record and the history beside it: what a run leaves behind, read and written here only."""

from ampsweep.record.atomic import write_atomically
from ampsweep.record.error import RecordError
from ampsweep.record.found import Found, find_records, run_directories
from ampsweep.record.history import (
    HISTORY_NAME,
    History,
    history_line,
    history_row,
    number,
    read_history,
    repair_history,
    salvage_history,
)
from ampsweep.record.outcome import OUTCOMES, Status
from ampsweep.record.run_record import (
    CHECKPOINTS,
    FILE_NAME,
    LAST,
    PREVIOUS,
    SCHEMA,
    SNAPSHOT_NAME,
    Identity,
    Kind,
    RunRecord,
)

__all__ = [
    "CHECKPOINTS",
    "FILE_NAME",
    "HISTORY_NAME",
    "LAST",
    "OUTCOMES",
    "PREVIOUS",
    "SCHEMA",
    "SNAPSHOT_NAME",
    "Found",
    "History",
    "Identity",
    "Kind",
    "RecordError",
    "RunRecord",
    "Status",
    "find_records",
    "history_line",
    "history_row",
    "number",
    "read_history",
    "repair_history",
    "run_directories",
    "salvage_history",
    "write_atomically",
]
