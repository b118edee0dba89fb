"""Writing of `history.jsonl`: the rows of a run on disk, the single source for everything that shows them elsewhere."""

from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path

from ampsweep.metrics import STEP
from ampsweep.record import HISTORY_NAME, NO_ROOM, RowsDigest, Stretch, history_line, repair_history, write_atomically


class HistoryFile:
    """The history of a run while it trains: each row is appended to `history.jsonl`.

    A row is one line of strict JSON, handed to the operating system whole before `log` returns, so that it survives the
    death of the process; not synced to the disk, so a crash of the machine can take the last rows. While the disk is
    full rows wait in memory.

    A row that was logged once stays as it is: W&B, which has it too, takes no second one. A resumed run therefore goes
    through the steps after its checkpoint without logging them again.
    """

    def __init__(self) -> None:
        self.reached = 0
        """Last step that an earlier process of this run logged."""
        self._file: FileIO | None = None
        self._earlier: tuple[Stretch, ...] = ()
        self._begin = self._end = 0
        """The bytes of this process's stretch."""
        self._digest = RowsDigest()
        self._waiting = b""
        """Rows, or a part of one, that are not in the file yet."""
        self._last_step = 0

    @property
    def stretches(self) -> list[Stretch]:
        """The digests of all rows in the file; those of earlier processes are as `start` was given them."""
        own = Stretch(end=self._end, blake2b=str(self._digest))
        return [*self._earlier, own] if self._end != self._begin else [*self._earlier]

    def start(self, directory: Path, *, resume_after: int | None, stretches: Sequence[Stretch] = ()) -> None:
        """Open the file: a resumed run keeps its intact rows, a run that starts from nothing has none.

        ``resume_after`` is the last step of the checkpoint that the run continues from; None without one.
        ``stretches`` are the digests of rows from before.

        Raises:
            RecordError: the path is no file, or may not be read.
        """
        path = directory / HISTORY_NAME
        if resume_after is not None:
            self.reached = repair_history(directory).last_step
            self._earlier = tuple(stretches)
            content = path.read_bytes() if path.exists() else b""
            self._begin, self._end = stretches[-1].end if stretches else 0, len(content)
            self._digest = RowsDigest(content[self._begin :])
        elif path.exists():
            write_atomically(path, "")
        self._last_step = resume_after or 0
        self._file = path.open("ab", buffering=0)

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Write the metrics of one step, without the step axis. Steps only grow."""
        assert self._file is not None, "log before start or after finish"
        assert STEP not in row, "the step axis is not a metric"
        assert step > self._last_step, f"step {step} after step {self._last_step}"
        self._last_step = step
        if step <= self.reached:
            return
        self._waiting += history_line({STEP: step, **row}).encode()
        try:
            self._write()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def finish(self) -> None:
        """Close the file. Does nothing the second time, or without a start.

        Raises:
            OSError: the disk is full, and rows that have waited for room are lost.
        """
        if self._file is None:
            return
        try:
            self._write()
        except OSError as error:
            num_rows = self._waiting.count(b"\n")
            raise OSError(error.errno, f"{error.strerror}: {num_rows} rows are lost", self._file.name) from error
        finally:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        assert self._file is not None
        while self._waiting:  # an unbuffered write may take a part, on a nearly full disk
            num_written = self._file.write(self._waiting)
            self._digest.update(self._waiting[:num_written])
            self._end += num_written
            self._waiting = self._waiting[num_written:]
