"""The history of a run, `history.jsonl`: one row per logged step, each a line of strict JSON."""

import json
import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ampsweep.metrics import STEP
from ampsweep.record.digests import Stretch, change_of
from ampsweep.record.files import RecordError, read_file, write_atomically

HISTORY_NAME: Final = "history.jsonl"
_DAMAGED_NAME: Final = "history.jsonl.damaged"

Row = dict[str, Any]

_STRICT_JSON: Final = json.JSONEncoder(allow_nan=False)
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_STEP: Final = 2**53
"""Largest step number; not every integer beyond it is a double."""


@dataclass(frozen=True)
class History:
    """The readable rows of a history, in the order of their growing steps, each with its line number (from 1)."""

    rows: list[Row]
    lines: Sequence[int] = ()
    damaged: dict[int, str] = field(default_factory=dict)
    """Line number -> a clause on why the line is no row."""
    is_torn: bool = False
    """True if the file ends within a line, as after the death of the process; that line is no row."""
    change: str | None = None
    """A clause if the file does not match its digests: any of its rows may be wrong."""

    @property
    def damage(self) -> str | None:
        if not self.damaged:
            return None
        line, why = min(self.damaged.items())
        if len(self.damaged) == 1:
            return f"is damaged: line {line} {why}"
        num_lines = len(self.damaged) + len(self.rows)
        return f"has {len(self.damaged)} damaged lines of {num_lines}; the first, line {line}, {why}"

    def without(self, damaged: dict[int, str]) -> "History":
        """A copy in which further lines count as damaged."""
        kept = [(line, row) for line, row in zip(self.lines, self.rows, strict=True) if line not in damaged]
        return History(
            [row for _, row in kept], [line for line, _ in kept], self.damaged | damaged, self.is_torn, self.change
        )


def history_line(row: Row) -> str:
    """Write one history row as a line of strict JSON: non-finite numbers become the strings that W&B uses for them."""
    try:
        return _STRICT_JSON.encode(row) + "\n"
    except ValueError:
        return _STRICT_JSON.encode({key: _encode(value) for key, value in row.items()}) + "\n"


def history_row(line: str) -> Row:
    """Read the row from a line that `history_line` made."""
    return {key: number(value) for key, value in json.loads(line).items()}


def number(value: Any) -> Any:
    """A value of a row, with strings for non-finite numbers as these numbers."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def read_history(directory: Path, stretches: Sequence[Stretch] = ()) -> list[Row]:
    """Read the rows of a run's `history.jsonl`; none if there is no file.

    A last line torn by a killed process is left out.

    Raises:
        RecordError: the file holds anything other than rows, or does not match its digests, `stretches`, or is gone.
    """
    try:
        history = salvage_history(directory, stretches)
    except FileNotFoundError:
        if stretches:
            raise RecordError(directory / HISTORY_NAME, "is not there") from None
        return []
    if (fault := history.damage or history.change) is not None:
        raise RecordError(directory / HISTORY_NAME, fault)
    return [{key: number(value) for key, value in row.items()} for row in history.rows]


def salvage_history(directory: Path, stretches: Sequence[Stretch] = (), *, is_ended: bool = False) -> History:
    """Read a run's `history.jsonl` as far as it can be read: of a damaged file the intact rows.

    Values are those of JSON (see `number`). If steps do not always grow, the fewest rows are left out that make them.
    The file is compared with its digests, which the record has (see `change_of`).

    Raises:
        RecordError: the path is no file, or may not be read.
        FileNotFoundError: there is no such file.
    """
    content = read_file(directory / HISTORY_NAME)
    end, is_torn = content.rfind(b"\n"), bool(content) and not content.endswith(b"\n")
    whole = content[:end]
    if end < 0:
        history = History([], is_torn=is_torn)
    else:
        history = _all_rows(whole, is_torn) or _rows_of(whole.split(b"\n"), is_torn)
    return replace(history, change=change_of(content, stretches, is_ended=is_ended)) if stretches else history


@dataclass(frozen=True)
class Repair:
    """A history file that a resumed run can append to."""

    last_step: int
    """Step of the last row; 0 if there are no rows."""
    note: str | None = None
    """A sentence about damaged lines that were dropped."""
    last_row: Row = field(default_factory=dict)
    """The figures of the last step, if it can be trusted."""


def repair_history(directory: Path, stretches: Sequence[Stretch] = ()) -> Repair:
    """Repair a run's `history.jsonl`, atomically, so that rows can be appended; intact rows are not rewritten.

    A last line torn by a killed process is cut. If anything else is damaged, the original file is kept beside it. Rows
    that do not match their digests, `stretches`, cannot be told apart: all are kept, and readers find them again.

    Raises:
        RecordError: the path is no file, or may not be read.
    """
    path = directory / HISTORY_NAME
    try:
        history = salvage_history(directory, stretches)
    except FileNotFoundError:
        return Repair(0)
    if history.damage is not None or history.is_torn:
        content = path.read_bytes()
        if history.damage is not None:
            (directory / _DAMAGED_NAME).write_bytes(content)
        lines = content.decode(errors="replace").split("\n")
        write_atomically(path, "".join(f"{lines[number - 1]}\n" for number in history.lines))
    last_step = history.rows[-1][STEP] if history.rows else 0
    if history.change is not None and history.damage is None:
        return Repair(last_step, f"{path} {history.change}; its rows do not count")
    if history.damage is None:
        last_row = history.rows[-1] if history.rows else {}
        return Repair(last_step, last_row={key: number(value) for key, value in last_row.items() if key != STEP})
    kept = f"what is whole is gone on with, the file as it was is {_DAMAGED_NAME}"
    return Repair(last_step, f"{path} {history.damage}; {kept}")


def _all_rows(whole: bytes, is_torn: bool) -> History | None:
    """Parse all lines fast; None if any is no row, or one that `json` would read differently."""
    import msgspec  # here: a training reads no history

    try:
        rows = [*map(msgspec.json.Decoder().decode, whole.split(b"\n"))]
        steps = [row[STEP] for row in rows]
    except (msgspec.MsgspecError, ValueError, RecursionError, LookupError, TypeError):
        return None
    if not set(map(type, rows)) <= {dict} or not set(map(type, steps)) <= {int}:
        return None
    if steps and not (steps[0] >= 0 and steps[-1] < _MAX_STEP and all(map(operator.lt, steps, steps[1:]))):
        return None
    return History(rows, range(1, len(rows) + 1), is_torn=is_torn)


def _rows_of(lines: Iterable[bytes], is_torn: bool) -> History:
    rows: dict[int, Row] = {}
    damaged: dict[int, str] = {}
    for position, line in enumerate(lines, start=1):
        row = _row(line)
        if isinstance(row, str):
            damaged[position] = row
        else:
            rows[position] = row
    kept = _growing([(row[STEP], position) for position, row in rows.items()])
    for position in rows.keys() - set(kept):
        damaged[position] = f"has a step ({rows[position][STEP]}) out of turn"
    return History([rows[position] for position in kept], kept, damaged, is_torn)


def _row(line: bytes) -> Row | str:
    """Read the row of a line, or return a clause on why it is no row."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(row, dict):
        return "is not a mapping"
    step = row.get(STEP)
    return row if type(step) is int and 0 <= step < _MAX_STEP else "has no step"


def _growing(steps: Sequence[tuple[int, int]]) -> list[int]:
    """Find the longest subsequence of growing steps among (step, position); returns positions.

    Source: M. L. Fredman, On computing the length of longest increasing subsequences, Discrete Math. 11 (1975).
    """
    ends: list[int] = []  # smallest last step of a subsequence of each length
    last: list[int] = []  # position of that step
    before: dict[int, int | None] = {}
    for step, position in steps:
        length = bisect_left(ends, step)
        before[position] = last[length - 1] if length else None
        ends[length : length + 1], last[length : length + 1] = [step], [position]
    kept = []
    at = last[-1] if last else None
    while at is not None:
        kept.append(at)
        at = before[at]
    return kept[::-1]


def _encode(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
