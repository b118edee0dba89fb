"""A run that failed: its error in full goes to `error.txt` beside its record, its sentence to who started it."""

import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

from ampsweep.config.identity import resolved_values
from ampsweep.config.schema import Config
from ampsweep.redaction import hide

ERROR_NAME: Final = "error.txt"
"""File beside the record of a run that failed, with the whole error, such as a traceback."""


class RunFailedError(Exception):
    """Raised with a sentence for the user after a run has failed and was recorded."""


def failed(error: BaseException, sentence: str, directory: Path, config: Config) -> RunFailedError:
    """Keep the traceback beside the run's record, where there is room, and make the error that tells of it."""
    text = "".join(traceback.format_exception(error))
    is_kept = write_error(directory, text, config)
    where = f"; its error in full: {directory / ERROR_NAME}" if is_kept else ""
    return RunFailedError(f"{hide(sentence, beside=resolved_values(config))}{where}")


def write_error(directory: Path, text: str, config: Config) -> bool:
    """Write `error.txt` without the secrets in it; return False if there is no room, or no directory any more."""
    file = directory / ERROR_NAME
    with suppress(OSError):
        file.write_text(hide(text, beside=resolved_values(config)).rstrip() + "\n", encoding="utf-8")
        return True
    with suppress(OSError):
        file.unlink()  # a part of it, or nothing
    return False
