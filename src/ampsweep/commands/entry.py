"""The entry point of every command: errors become one sentence on stderr and an exit code. Imports nothing slow."""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from ampsweep.standard_streams import guard_streams

_SOME_FAILED: Final = 1  # the same as `ampsweep.records.outcome.SOME_FAILED`, which takes time to import
_STOPS: Final = (signal.SIGTERM,) if sys.platform == "win32" else (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""`ampsweep.stop_signals.STOP_SIGNALS` takes time to import; Python itself raises KeyboardInterrupt for SIGINT."""
FULL_ERROR: Final = "HYDRA_FULL_ERROR"  # Hydra's environment variable: 1 also shows the whole traceback


def run_command(name: str) -> int:
    """Import and call the command `package.module:function` with `sys.argv`; return the exit code."""
    try:
        for number in _STOPS:
            signal.signal(number, _interrupt)
        module, _, function = name.partition(":")
        command: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return command(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _SOME_FAILED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def ended(command: Callable[[], int], given: Sequence[str] = ()) -> int:
    """Call a command and return its exit code: 2 for wrong input, 1 for a failure, each with a sentence on stderr.
    Secrets given on the command line are hidden in the sentence."""
    guard_streams()
    try:
        code = command()
        sys.stdout.flush()  # here, where a full disk can still be reported
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _SOME_FAILED
    except Exception as error:
        from ampsweep.config.errors import UserError
        from ampsweep.launch.isolated_process import ChildError
        from ampsweep.records.outcome import WRONG_INPUT
        from ampsweep.run.failure import RunFailedError

        if isinstance(error, OSError):
            _print_error(error, _os_error_text(error), given)
        elif isinstance(error, MemoryError):
            _print_error(error, "out of memory", given)
        elif isinstance(error, UserError | RunFailedError | ChildError):
            _print_error(error, str(error), given)
        else:  # a bug of the suite
            raise
        return WRONG_INPUT if isinstance(error, UserError) else _SOME_FAILED


def _os_error_text(error: OSError) -> str:
    """Describe the error; if stdout cannot be written, redirect it so that Python's exit does not fail again."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return f"stdout cannot be written: {error.strerror}"
    return str(error)


def _print_error(error: BaseException, sentence: str, given: Sequence[str]) -> None:
    """Print the sentence, after the whole traceback if the user asked for it."""
    from ampsweep.redaction import hide
    from ampsweep.text import escaped

    if os.environ.get(FULL_ERROR) == "1":
        whole = hide("".join(traceback.format_exception(error)), beside=given)
        print(escaped(whole, keeps="\n\t"), file=sys.stderr, end="")
    print(f"error: {escaped(hide(' '.join(sentence.split()), beside=given))}", file=sys.stderr)
