"""Runs in processes of a launcher's workers, followed by their records on disk."""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ampsweep.config.compose import Points
from ampsweep.config.identity import run_directory_name
from ampsweep.config.schema import Config
from ampsweep.record import FILE_NAME, RunRecord
from ampsweep.sweep.progress.display import ProgressDisplay

_EVERY_S: Final = 2.0


def watch(points: Points, directory: Path, display: ProgressDisplay) -> AbstractContextManager[object]:
    """Report to `display` the runs of a sweep into `directory`, if the launcher runs them in other processes."""
    if points.in_this_process:
        return nullcontext()
    return RunWatch(directory, [point.config for point in points.points], display)


class RunWatch:
    """Reports to `display` the runs of `configs` in `directory` that a launcher's workers do, on whichever machine.

    Records of earlier attempts do not count. Every two seconds it reads the records that have changed.
    """

    def __init__(self, directory: Path, configs: Sequence[Config], display: ProgressDisplay) -> None:
        files = {directory / run_directory_name(config) / FILE_NAME: config for config in configs}
        self._waited_for = files
        self._seen = {file: _changed_ns(file) for file in files}
        self._going_on: set[Path] = set()
        self._display = display
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="run-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(_EVERY_S)
            self._look()

    def _look(self) -> None:
        for file, config in list(self._waited_for.items()):
            changed_ns = _changed_ns(file)
            if changed_ns == self._seen[file]:
                continue
            self._seen[file] = changed_ns
            record = RunRecord.read(file.parent)
            self._going_on.add(file)
            if record.ended_at is not None:
                self._going_on.remove(file)
                del self._waited_for[file]
                self._display.run_ends(config, record)
        self._display.runs_elsewhere(len(self._going_on))


def _changed_ns(file: Path) -> int | None:
    """Time of the file's last change in ns; None if there is no file."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None
