"""Failed runs: the full error goes to `error.txt` beside the record, a sentence to the user."""

import multiprocessing
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ampsweep.config.schema import Config
from ampsweep.records import RecordError, RunRecord, now
from ampsweep.records.outcome import OutOfMemory, Status
from ampsweep.redaction import hide
from ampsweep.run.request import RunRequest, new_record

ERROR_NAME: Final = "error.txt"


class RunFailedError(Exception):
    """Raised with a sentence for the user after a run has failed and was recorded."""


def failed(error: BaseException, sentence: str, directory: Path, config: Config) -> RunFailedError:
    """Write `error.txt`, and make the error for the user."""
    write_error(directory, "".join(traceback.format_exception(error)), config)
    redacted = hide(sentence, beside=asdict(config))
    return RunFailedError(f"{redacted}; its error in full: {directory / ERROR_NAME}")


def write_error(directory: Path, text: str, config: Config) -> None:
    """Write `error.txt` with secrets redacted, if there is room."""
    with suppress(OSError):
        hidden = hide(text, beside=asdict(config)).rstrip()
        (directory / ERROR_NAME).write_text(f"{hidden}\n", encoding="utf-8")


def kept_error(directory: Path) -> str:
    try:
        return (directory / ERROR_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def record_stuck(request: RunRequest, sentence: str, status: Status = "failed", oom: OutOfMemory | None = None) -> None:
    """Record, from another thread, the end of a run whose main thread hangs; the process ends next."""
    stacks = [f"{''.join(traceback.format_stack(frame))}\n" for frame in sys._current_frames().values()]
    write_error(request.directory, "\n".join([sentence, "The stacks of all threads:", "", *stacks]), request.config)
    record = record_so_far(request)
    record.status, record.error, record.oom, record.ended_at = status, sentence, oom, now()
    with suppress(OSError):
        record.write(request.directory)
    if multiprocessing.parent_process() is None:  # else the parent prints it
        redacted = hide(f"{request.directory.name} failed: {sentence}", beside=asdict(request.config))
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # the progress display has hidden it
        print(f"{show_cursor}error: {redacted}; its error in full: {request.directory / ERROR_NAME}", file=sys.stderr)


def record_so_far(request: RunRequest, world_size: int = 1) -> RunRecord:
    """Read the run's record, or make one if its process died before it had written any."""
    with suppress(FileNotFoundError, RecordError):
        return RunRecord.read(request.directory)
    config = request.config
    return new_record(config, device=config.device, batch_search=request.batch_search, world_size=world_size)
