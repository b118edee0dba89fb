"""The history of a run, `history.jsonl`: one row per logged step, each a line of strict JSON."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ampsweep.metrics import STEP
from ampsweep.records.files import RecordError, digest_of, read_file, write_atomically

HISTORY_NAME: Final = "history.jsonl"

Row = dict[str, Any]

_STRICT_JSON: Final = json.JSONEncoder(allow_nan=False)
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_STEP: Final = 2**53  # not every integer beyond it is a double
_CHANGED: Final = "has been changed since its run ended: it does not match its digest"


@dataclass(frozen=True)
class History:
    """The rows of a history by ascending step; values are those of JSON (see `number`)."""

    rows: list[Row]
    is_torn: bool = False  # True if the file ends within a line, as after a kill; that line is no row


def history_line(row: Row) -> str:
    """Encode a row as a line of strict JSON; non-finite numbers become the strings that W&B uses."""
    try:
        return _STRICT_JSON.encode(row) + "\n"
    except ValueError:
        return _STRICT_JSON.encode({key: _encode(value) for key, value in row.items()}) + "\n"


def history_row(line: str) -> Row:
    return _with_numbers(json.loads(line))


def number(value: Any) -> Any:
    """Convert the strings of non-finite numbers back to numbers."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def load_history(directory: Path, expected: str | None = None) -> History:
    """Load a run's `history.jsonl` without a torn last line; `expected`: its digest, from the record of a run that
    ended. RecordError: the file holds anything but rows, does not match its digest, cannot be read, or is missing
    despite it. FileNotFoundError: there is neither file nor digest."""
    path = directory / HISTORY_NAME
    try:
        content = read_file(path)
    except FileNotFoundError:
        if expected is None:
            raise
        raise RecordError(path, "is not there") from None
    whole, _, torn = content.rpartition(b"\n")
    history = History(_rows(path, whole), is_torn=bool(torn))
    if expected is not None and digest_of(content) != expected:
        raise RecordError(path, _CHANGED)
    return history


def read_history(directory: Path, expected: str | None = None) -> list[Row]:
    """Read the rows of a run's `history.jsonl`; empty without a file. See `load_history`."""
    try:
        rows = load_history(directory, expected).rows
    except FileNotFoundError:
        return []
    return [_with_numbers(row) for row in rows]


def history_digest(directory: Path) -> str | None:
    path = directory / HISTORY_NAME
    return digest_of(path.read_bytes()) if path.is_file() else None


def repair_history(directory: Path, expected: str | None = None) -> Row:
    """Remove a torn last line of `history.jsonl` atomically; return the last row, empty without rows. Raises
    RecordError as `load_history` does."""
    try:
        history = load_history(directory, expected)
    except FileNotFoundError:
        return {}
    if history.is_torn:
        path = directory / HISTORY_NAME
        content = path.read_bytes()
        write_atomically(path, content[: content.rfind(b"\n") + 1].decode())
    return _with_numbers(history.rows[-1]) if history.rows else {}


def _rows(path: Path, whole: bytes) -> list[Row]:
    import msgspec  # here: a training reads no history

    decode, rows, before = msgspec.json.Decoder().decode, [], -1
    for position, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            row = decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise RecordError(path, f"is damaged: line {position} is not JSON") from None
        step = row.get(STEP) if isinstance(row, dict) else None
        if type(step) is not int or not 0 <= step < _MAX_STEP:
            raise RecordError(path, f"is damaged: line {position} has no step")
        if step <= before:
            raise RecordError(path, f"is damaged: line {position} has a step ({step}) out of turn")
        rows.append(row)
        before = step
    return rows


def _with_numbers(row: Row) -> Row:
    return {key: number(value) for key, value in row.items()}


def _encode(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
