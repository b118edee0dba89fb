"""A command line that has ended or still runs, and what it left on disk."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ampsweep.analysis.runs import Run
from ampsweep.records import RunRecord, find_records, read_history

MLP = ("model=mlp_small", "tracking=disabled", "trainer.log_every=2", "predict.with_runs=false")
"""A training of milliseconds."""
GPT = (
    *("model=gpt_tiny", "model.hidden_size=32", "data.batch_size=4", "data.seq_len=32", "data.num_val_batches=2"),
    *("tracking=disabled", "predict.with_runs=false"),
)
"""A language model on real text, small enough to learn something in a second, in float16 too."""
PATIENCE_S = 60.0
"""How long anything may take on a busy machine."""
_ENDED = re.compile(r" *\d+/\d+  ")


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Stdout without line breaks and columns."""
        return " ".join(self.out.split())

    @property
    def runs(self) -> list[str]:
        """Lines on stderr about a run of a sweep that has ended."""
        return [line for line in self.err.splitlines() if _ENDED.match(line)]

    @property
    def said(self) -> list[str]:
        """The other lines on stderr, without those about a machine that was busy before a run."""
        return [line for line in self.err.splitlines() if not (_ENDED.match(line) or "before the run began" in line)]


@dataclass(frozen=True)
class RunFiles:
    directory: Path

    @property
    def record(self) -> RunRecord:
        return RunRecord.read(self.directory)

    @property
    def contradictions(self) -> tuple[str, ...]:
        return Run(self.directory, self.record).contradictions

    @property
    def history(self) -> list[dict[str, Any]]:
        return read_history(self.directory)

    def column(self, key: str) -> dict[int, float]:
        return {row["step"]: row[key] for row in self.history if key in row}


@dataclass(frozen=True)
class Swept:
    arguments: tuple[str, ...]
    directory: Path
    ended: Finished

    @property
    def runs(self) -> list[RunFiles]:
        return all_runs(self.directory)


@dataclass(frozen=True)
class Started:
    """A `train.py` that still runs."""

    process: subprocess.Popen[str]
    mark: str
    """Value of AMPSWEEP_TEST in the environment of all its processes."""

    def alive(self) -> list[int]:
        """Processes that began with this command line, orphans included."""
        return [process.pid for process in psutil.process_iter() if self._is_ours(process)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal as `kill` does: to the process alone."""
        self.process.send_signal(number)

    def ctrl_c(self) -> None:
        """Interrupt as the terminal does: all processes."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self) -> Finished:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return Finished(self.process.returncode, out, err)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return not is_zombie and process.environ().get("AMPSWEEP_TEST") == self.mark
        except psutil.Error:
            return False  # it has just ended


def all_runs(directory: str | Path = "outputs") -> list[RunFiles]:
    """Runs below the directory in the order in which they began."""
    runs = [path for path, _ in find_records(Path(directory)).records]
    return [RunFiles(path) for path in sorted(runs, key=lambda path: (path / ".hydra/config.yaml").stat().st_mtime_ns)]


def only_run(directory: str | Path = "outputs") -> RunFiles:
    (run,) = all_runs(directory)
    return run


def only_sweep(directory: str | Path = "outputs") -> Path:
    (path,) = Path(directory).rglob("multirun.yaml")
    return path.parent


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
