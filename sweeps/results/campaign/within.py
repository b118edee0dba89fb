"""Running a command within a time limit: at its end the command is asked to stop, then killed with its children."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from ampsweep.record import write_atomically

GRACE_S: Final = 8.0
"""Time that a training has for its checkpoint once it was asked to end."""
GONE_S: Final = 10.0
"""Time that killed processes have to disappear: a driver may take seconds to free a device's memory."""
_RUNNING: Final = "running"
"""File that names the process at work, so that a campaign that was killed leaves none behind."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote to stdout and stderr."""

    code: int
    in_time: bool
    out: str
    err: str


def run_within(
    command: Sequence[str], seconds: float, *, directory: Path, cwd: Path, environment: Mapping[str, str]
) -> Ended:
    """Run a command in `cwd`; `directory` keeps what it writes last (`last.out`, `last.err`).

    Args:
        seconds: after these it is asked to end (SIGINT), and killed `GRACE_S` later.

    Raises:
        KeyboardInterrupt: this process was asked to end, and the command has ended.
    """
    out, err, running = directory / "last.out", directory / "last.err", directory / _RUNNING
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=cwd, env=dict(environment), stdout=stdout, stderr=stderr, start_new_session=True
        )
        in_time = True
        try:
            with suppress(psutil.NoSuchProcess):
                write_atomically(running, f"{process.pid} {psutil.Process(process.pid).create_time():.2f}")
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
            _kill_group(process.pid)
            process.wait()
            running.unlink(missing_ok=True)
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
    return Ended(process.returncode, in_time, *texts)


def end_leftover(directory: Path) -> None:
    """End the command of a campaign in `directory` that was killed, if it goes on."""
    path = directory / _RUNNING
    if not path.is_file():
        return
    pid, born = path.read_text(encoding="ascii").split()
    with suppress(psutil.NoSuchProcess):
        if f"{psutil.Process(int(pid)).create_time():.2f}" == born:
            _kill_group(int(pid))
    path.unlink()


def _kill_group(leader: int) -> None:
    """End what is left of a process group, and wait until it is gone: it holds the device that is measured next."""
    members = [process for process in psutil.process_iter() if _group(process.pid) == leader]
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    while any(map(_is_at_work, members)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _is_at_work(process: psutil.Process) -> bool:
    """Tell whether a process is running; one that has ended and waits to be reaped is not."""
    try:
        at_work: bool = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    return at_work
