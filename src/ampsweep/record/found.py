"""The records below a directory."""

import os
from dataclasses import dataclass
from pathlib import Path

from ampsweep.record.error import RecordError, read_file
from ampsweep.record.run_record import FILE_NAME, RunRecord


@dataclass(frozen=True)
class Found:
    """What lies below a directory: runs with their records, and what of them cannot be read."""

    records: list[tuple[Path, RunRecord]]
    unreadable: list[RecordError]


def find_records(directory: Path, *, mentioning: str | None = None) -> Found:
    """All records at or below `directory` in the order of their paths, as (run directory, record).

    Args:
        directory: where to look.
        mentioning: read only records in whose text this is found; to look for it costs a tenth of reading.
    """
    unreadable: list[RecordError] = []
    records = []
    for place in run_directories(directory, unreadable):
        try:
            if mentioning is None or mentioning.encode() in read_file(place / FILE_NAME):
                records.append((place, RunRecord.read(place)))
        except RecordError as error:
            unreadable.append(error)
        except FileNotFoundError:
            continue  # removed in between
    return Found(records, unreadable)


def run_directories(directory: Path, unreadable: list[RecordError] | None = None) -> list[Path]:
    """Directories at or below `directory` that hold something called `run.json`, in the order of their paths.

    What may not be looked into is added to `unreadable`.
    """

    def note(error: OSError) -> None:
        if unreadable is not None:
            unreadable.append(RecordError(Path(error.filename), f"cannot be read: {error.strerror}"))

    walked = os.walk(directory, onerror=note)
    return sorted(Path(place) for place, folders, files in walked if FILE_NAME in files or FILE_NAME in folders)
