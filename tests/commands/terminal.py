"""A terminal in which a command runs, and the lines that its user sees."""

import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

PATIENCE_S = 60.0
_CONTROL_OR_TEXT = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([^\x1b\r\n]+|[\r\n])")


def seen(written: str) -> list[str]:
    """The lines that are left of what was written. Knows the control sequences of rich; any other is an error."""
    lines, row, column = [""], 0, 0
    for parameters, control, text in _CONTROL_OR_TEXT.findall(written):
        if control == "A":
            row -= int(parameters or 1)
        elif control == "K":
            lines[row] = ""
        elif control:
            assert control == "m" or parameters == "?25", (parameters, control)  # a colour; the cursor
        elif text in "\r\n":
            row, column = row + (text == "\n"), 0
            lines += [""] * (row == len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


class Terminal:
    """Runs `command` in a terminal of its own; `lines` follow while something is waited for."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, width: int) -> None:
        self._master, side = pty.openpty()
        termios.tcsetwinsize(side, (40, width))
        # A session of its own, whose terminal it is, so that Ctrl-C reaches it as from a keyboard.
        self.process = subprocess.Popen(command, env=environment, preexec_fn=partial(os.login_tty, side))
        os.close(side)
        self._written = b""

    @property
    def raw(self) -> str:
        """Everything that was written."""
        return self._written.decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        return seen(self.raw)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, condition: Callable[[list[str]], object], what: str) -> list[str]:
        """The lines as soon as they meet the condition."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.lines):
            assert self._read(), f"ended before {what}: {self.lines}"
            assert time.monotonic() < deadline, f"waited in vain until {what}: {self.lines}"
        return self.lines

    def finish(self) -> int:
        """Wait for the end; returns the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self) -> bool:
        """Add what is written within a moment; False once nobody is left to write."""
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            read = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when the other side is closed
            read = b""
        self._written += read
        return bool(read)
