"""The run record and the history beside it: what a run leaves behind, read and written here only."""

from ampsweep.record.checkpoint_places import (
    AT_SEAM,
    CHECKPOINTS,
    LAST,
    MANIFEST,
    PREVIOUS,
    directory_of,
    is_checkpoint,
    kept_checkpoint,
    kept_checkpoints,
)
from ampsweep.record.digests import RowsDigest, Stretch
from ampsweep.record.files import NO_ROOM, RecordError, remove_leftovers, replacing, write_atomically
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
from ampsweep.record.run_record import (
    FILE_NAME,
    SNAPSHOT_NAME,
    Found,
    Identity,
    RunRecord,
    find_records,
)

__all__ = [
    "AT_SEAM",
    "CHECKPOINTS",
    "FILE_NAME",
    "HISTORY_NAME",
    "LAST",
    "MANIFEST",
    "NO_ROOM",
    "PREVIOUS",
    "SNAPSHOT_NAME",
    "Found",
    "History",
    "Identity",
    "RecordError",
    "RowsDigest",
    "RunRecord",
    "Stretch",
    "directory_of",
    "find_records",
    "history_line",
    "history_row",
    "is_checkpoint",
    "kept_checkpoint",
    "kept_checkpoints",
    "number",
    "read_history",
    "remove_leftovers",
    "repair_history",
    "replacing",
    "salvage_history",
    "write_atomically",
]
