"""`history.jsonl`: a row a logged step, as lines of strict JSON."""

import json
import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ampsweep.metrics import STEP
from ampsweep.record.files import RecordError, read_file, write_atomically

HISTORY_NAME: Final = "history.jsonl"
_DAMAGED_NAME: Final = "history.jsonl.damaged"

Row = dict[str, Any]

_STRICT_JSON: Final = json.JSONEncoder(allow_nan=False)
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_STEP: Final = 2**53
"""Beyond it not every step is a double."""


@dataclass(frozen=True)
class History:
    """What can be read of a history: rows whose steps grow, each with the number of its line (from 1)."""

    rows: list[Row]
    lines: Sequence[int] = ()
    damaged: dict[int, str] = field(default_factory=dict)
    """Line -> why it is no row, as a clause."""
    is_torn: bool = False
    """It ends within a line, as the death of a process leaves it; what is there of that line is no row."""

    @property
    def damage(self) -> str | None:
        """The damaged lines in one clause; None where there are none."""
        if not self.damaged:
            return None
        line, why = min(self.damaged.items())
        if len(self.damaged) == 1:
            return f"is damaged: line {line} {why}"
        num_lines = len(self.damaged) + len(self.rows)
        return f"has {len(self.damaged)} damaged lines of {num_lines}; the first, line {line}, {why}"

    def without(self, damaged: dict[int, str]) -> "History":
        """The same without the rows of further damaged lines."""
        kept = [(line, row) for line, row in zip(self.lines, self.rows, strict=True) if line not in damaged]
        return History([row for _, row in kept], [line for line, _ in kept], self.damaged | damaged, self.is_torn)


def history_line(row: Row) -> str:
    """One history row as a line of strict JSON: non-finite numbers become the strings W&B uses for them."""
    try:
        return _STRICT_JSON.encode(row) + "\n"
    except ValueError:
        return _STRICT_JSON.encode({key: _encode(value) for key, value in row.items()}) + "\n"


def history_row(line: str) -> Row:
    """The row that `history_line` made the line of."""
    return {key: number(value) for key, value in json.loads(line).items()}


def number(value: Any) -> Any:
    """A value of a row, with the strings for non-finite numbers as these."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def read_history(directory: Path) -> list[Row]:
    """The rows of a run's `history.jsonl`; none without the file. A last line torn by a killed process is left out.

    Raises:
        RecordError: there is anything else than rows in it.
    """
    try:
        history = salvage_history(directory)
    except FileNotFoundError:
        return []
    if history.damage is not None:
        raise RecordError(directory / HISTORY_NAME, history.damage)
    return [{key: number(value) for key, value in row.items()} for row in history.rows]


def salvage_history(directory: Path) -> History:
    """What can be read of a run's `history.jsonl`: of a damaged one the rows that are whole.

    Values are as JSON has them: see `number`. Where steps do not grow, the fewest rows are left out that make them.

    Raises:
        RecordError: the file is none, or may not be read.
        FileNotFoundError: there is none.
    """
    content = read_file(directory / HISTORY_NAME)
    end, is_torn = content.rfind(b"\n"), bool(content) and not content.endswith(b"\n")
    if end < 0:
        return History([], is_torn=is_torn)
    whole = content[:end]
    return _all_rows(whole, is_torn) or _rows_of(whole.split(b"\n"), is_torn)


@dataclass(frozen=True)
class Repair:
    """A history that can be gone on with."""

    last_step: int
    """That of its last row; 0 where it has none."""
    note: str | None = None
    """A sentence about damage that was dropped."""


def repair_history(directory: Path) -> Repair:
    """Make a run's `history.jsonl` one that can be gone on with: atomically, and the rows that stay are not rewritten.

    A last line torn by a killed process is cut. Where anything else is damaged, the file as it was is kept beside it.

    Raises:
        RecordError: the file is none, or may not be read.
    """
    path = directory / HISTORY_NAME
    try:
        history = salvage_history(directory)
    except FileNotFoundError:
        return Repair(0)
    if history.damage is not None or history.is_torn:
        content = path.read_bytes()
        if history.damage is not None:
            (directory / _DAMAGED_NAME).write_bytes(content)
        lines = content.decode(errors="replace").split("\n")
        write_atomically(path, "".join(f"{lines[number - 1]}\n" for number in history.lines))
    last_step = history.rows[-1][STEP] if history.rows else 0
    if history.damage is None:
        return Repair(last_step)
    kept = f"what is whole is gone on with, the file as it was is {_DAMAGED_NAME}"
    return Repair(last_step, f"{path} {history.damage}; {kept}")


def _all_rows(whole: bytes, is_torn: bool) -> History | None:
    """All lines by a quicker parser, a quarter of the time; None if any is no row, or one that json reads otherwise."""
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
    """The rows among the lines."""
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
    """The row in the line, or why it is none, as a clause."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(row, dict):
        return "is not a mapping"
    step = row.get(STEP)
    return row if type(step) is int and 0 <= step < _MAX_STEP else "has no step"


def _growing(steps: Sequence[tuple[int, int]]) -> list[int]:
    """Positions of the longest subsequence with growing steps, of (step, position).

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
