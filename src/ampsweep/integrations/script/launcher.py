"""A command, such as `python train.py --bf16`, run with its trainings recorded; nothing of it is changed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import BinaryIO, Final, Self

from ampsweep.config.errors import UserError
from ampsweep.integrations.script.command_line import claim_of
from ampsweep.integrations.script.session import VARIABLE, AskedOfCommand, Session, Told
from ampsweep.launch.isolated_process import sudden_end
from ampsweep.launch.processes import num_oom_kills
from ampsweep.records import FILE_NAME, RunRecord, now
from ampsweep.records.outcome import OOM_KILLED
from ampsweep.stop_signals import STOP_SIGNALS

_SHM: Final = "/dev/shm"
MEMORY: Final = _SHM if os.access(_SHM, os.W_OK) else None
"""Where processes hand small files to the launcher: in memory if the system has such a folder, as disks are full at
times; None: in the temporary directory."""
_STARTUP: Final = Path(__file__).with_name("startup")
"""Its `sitecustomize` is imported by every Python process that has it on its path."""
_FORWARDED: Final = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *STOP_SIGNALS} if sys.platform != "win32" else set()
_CAN_WAIT: Final = sys.platform == "linux"  # for signals, and be told who has sent them
_STOPS: Final[dict[int, str]] = {number: signal.Signals(number).name for number in (signal.SIGINT, signal.SIGTERM)}
"""Signals that somebody has stopped a command with, whoever sent them."""


@dataclass(frozen=True, kw_only=True)
class ScriptOptions(AskedOfCommand):
    """What is asked of a command, and how it is run."""

    into: Path | None = None  # folder of the runs to compare; None: outputs/EXPERIMENT
    environment: Mapping[str, str] = field(default_factory=dict)  # more variables for the command
    output: BinaryIO | None = None  # gets what the command prints, which then has no input; None: our own streams


@dataclass(frozen=True, kw_only=True)
class EndedCommand:
    """A command that has ended, and what it left."""

    exit_code: int  # the command's own; 128 + n for signal n, as a shell has it
    directories: tuple[Path, ...]  # of its records, by their beginning; empty without any optimizer step
    records: tuple[RunRecord, ...]  # read from them, after the records of several ranks were merged
    why_none: str | None = None  # a sentence, if there is no record
    stopped_by: str | None = None  # the last stop signal that reached the launcher meanwhile, such as `SIGINT`

    @property
    def directory(self) -> Path | None:
        return self.directories[0] if self.directories else None


def run_recorded(command: Sequence[str], options: ScriptOptions) -> EndedCommand:
    """Run the command, and return when it has ended and its record is complete.

    Signals to this process are forwarded. Prints nothing. Raises UserError if there is no such command.
    """
    asked = {own.name: getattr(options, own.name) for own in fields(AskedOfCommand)}
    asked["claimed"] = options.claimed or claim_of(command, options.arm)
    root = (options.into or Path("outputs")).expanduser().resolve()
    with TemporaryDirectory(prefix="ampsweep-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        session = Session(folder=folder, root=str(root), is_into=options.into is not None, **asked)
        environment = {**os.environ, **options.environment, VARIABLE: session.variable()}
        path = filter(None, [str(_STARTUP), environment.get("PYTHONPATH")])
        environment["PYTHONPATH"] = os.pathsep.join(path)
        kills_before = num_oom_kills()
        exit_code, stopped_by = _run(command, environment, options.output)
        is_oom = num_oom_kills() != kills_before
        told = session.told()
        said = [Path(own.directory) for own in told if own.directory is not None]
        directories = tuple(place for place in said if (place / FILE_NAME).exists())
        return EndedCommand(
            exit_code=exit_code,
            directories=directories,
            records=tuple(_completed(directory, exit_code, stopped_by, is_oom=is_oom) for directory in directories),
            why_none=None if directories else _why_none(command, told),
            stopped_by=stopped_by,
        )


def _completed(directory: Path, code: int, stopped_by: str | None, *, is_oom: bool) -> RunRecord:
    """Complete a record with what only the parent of its process knows about its end."""
    record = RunRecord.read(directory)
    is_killed = record.ended_at is None
    if is_killed:
        record.ended_at = now()
    elif code == 0 or record.status != "completed":
        return record
    if is_killed and is_oom:
        record.status, record.oom, record.error = "oom", OOM_KILLED, OOM_KILLED.sentence
    elif by := stopped_by or _STOPS.get(code - 128):
        record.status, record.error = "interrupted", f"stopped by {by}"
    else:
        how = sudden_end(128 - code) if code > 128 else f"the command ended with exit code {code}"
        record.status, record.error = "failed", how
    record.write(directory)
    return record


def _run(command: Sequence[str], environment: Mapping[str, str], output: BinaryIO | None) -> tuple[int, str | None]:
    """Run the command until it ends; return its exit code, and the last signal of those that were handed on to it."""
    stdin, stderr = (None, None) if output is None else (subprocess.DEVNULL, subprocess.STDOUT)
    with _Forwarding() as signals:
        try:
            child = subprocess.Popen(
                command, env=environment, stdin=stdin, stdout=output, stderr=stderr, preexec_fn=signals.in_child
            )
        except OSError as error:
            raise UserError(f"{command[0]}: {error.strerror}") from error
        signals.wait(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode, signals.last


class _Forwarding:
    """Hands signals on to a command, unless it has got them itself: a terminal signals all processes of its group."""

    last: str | None = None

    def __enter__(self) -> Self:
        if _CAN_WAIT:
            self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
        return self

    def __exit__(self, *_: object) -> None:
        self.in_child()

    def in_child(self) -> None:
        """Restore the signal mask, which a new process inherits."""
        if _CAN_WAIT:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def wait(self, child: "subprocess.Popen[bytes]") -> None:
        if not _CAN_WAIT:
            self._wait_with_handlers(child)
        while child.poll() is None:
            told = signal.sigtimedwait({*_FORWARDED, signal.SIGCHLD}, 1.0)
            if told is not None and told.si_signo != signal.SIGCHLD:
                self.last = signal.Signals(told.si_signo).name
                if told.si_code <= 0:  # sent by a process, not by the kernel for a terminal
                    child.send_signal(told.si_signo)

    def _wait_with_handlers(self, child: "subprocess.Popen[bytes]") -> None:
        def hand_on(number: int, _: FrameType | None) -> None:
            self.last = signal.Signals(number).name
            if number != signal.SIGINT:
                child.send_signal(number)

        before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _why_none(command: Sequence[str], told: Sequence[Told]) -> str:
    """A sentence on why no process of the command has left a record."""
    if told:
        unused = "torch was imported, but no optimizer of torch.optim took a step"
        return next((own.reason for own in told if own.reason is not None), unused)
    if hiding := [word for word in command if re.fullmatch("-[a-zA-Z]*[IES][a-zA-Z]*", word)]:
        return f"no process was seen to import torch: with {hiding[0]}, Python does not look where the recorder waits"
    return "no Python process of it imported torch"
