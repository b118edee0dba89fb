"""`history.jsonl`: the rows of a run on disk, the source of truth for everything that shows them elsewhere."""

import json
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from ampsweep.metrics import STEP
from ampsweep.record import HISTORY_NAME, RecordError, RunRecord, history_line, write_atomically


class HistoryFile:
    """Tracker that appends each row to `history.jsonl`.

    A row is one line of strict JSON, handed to the operating system whole before `log` returns, so that it survives the
    death of the process; not synced to the disk, so a crash of the machine can take the last rows.
    """

    def __init__(self) -> None:
        self.reached = 0
        """Last step that an earlier process of this run logged, rows that `start` cut included."""
        self._file: FileIO | None = None
        self._last_step = 0

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Open the file, first cutting what an earlier process logged after its last checkpoint.

        Raises:
            RecordError: the file holds something else than history rows.
        """
        path = directory / HISTORY_NAME
        self._last_step = resume_after or 0
        self.reached = _cut_after(path, self._last_step) if path.exists() else 0
        self._file = path.open("ab", buffering=0)

    def log(self, row: Mapping[str, float], step: int) -> None:
        assert self._file is not None, "log before start or after finish"
        assert STEP not in row, "the step axis is not a metric"
        assert step > self._last_step, f"step {step} after step {self._last_step}"
        line = memoryview(history_line({STEP: step, **row}).encode())
        while line:  # an unbuffered write may take a part, on a nearly full disk
            line = line[self._file.write(line) :]
        self._last_step = step

    def finish(self, record: RunRecord) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _cut_after(path: Path, last: int) -> int:
    """Atomically drop the rows of ``path`` after step ``last`` and a torn last line; the last step there was."""
    content = path.read_bytes()
    kept, reached = [], 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            step = int(json.loads(line)[STEP])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(path, f"line {number} is not a history row") from error
        reached = max(reached, step)
        if step <= last:
            kept.append(line)
    if (cut := b"".join(kept)) != content:
        write_atomically(path, cut.decode())
    return reached
