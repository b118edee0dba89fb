"""A terminal in which a command runs, and the lines that its user sees."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

PATIENCE_S = 60.0
_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
_CUT_OFF = re.compile(r"(\x1b(\[[?0-9;]*)?)?$")
"""The beginning of a control sequence whose end is still to come."""


class Terminal:
    """Runs `command` in a terminal of its own; `lines` (scrolled ones included) follow while something is waited for.

    Knows only the control sequences that rich writes; any other is an error.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, width: int, height: int = 40) -> None:
        self._master, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it as from a keyboard
        )
        os.close(side)
        self.raw = ""
        """Everything that was written."""
        self._width, self._lines, self._row, self._column = width, [""], 0, 0
        self._decoder, self._pending = codecs.getincrementaldecoder("utf-8")(), ""

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._lines]

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, condition: Callable[[list[str]], object], what: str) -> list[str]:
        """The lines of the screen as soon as they meet the condition."""
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
        os.close(self._master)

    def _read(self) -> bool:
        """Show what is written within a moment; False once nobody is left to write."""
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            read = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when the other side is closed
            read = b""
        written = self._pending + self._decoder.decode(read)
        complete = len(written) - len(_CUT_OFF.search(written)[0])
        self._pending, written = written[complete:], written[:complete]
        self.raw += written
        position = 0
        for control in _CONTROL.finditer(written):
            self._print(written[position : control.start()])
            parameters, letter = control.groups()
            if letter == "A":
                self._row -= int(parameters or 1)
            elif letter == "K":
                self._lines[self._row] = ""
            else:
                assert letter == "m" or parameters == "?25", (parameters, letter)  # a colour; the cursor
            position = control.end()
        self._print(written[position:])
        return bool(read)

    def _print(self, text: str) -> None:
        for character in text:
            if character == "\n" or (character != "\r" and self._column == self._width):
                self._row += 1
                self._lines += [""] * (self._row == len(self._lines))
                self._column = 0 if character != "\n" else self._column
            if character == "\r":
                self._column = 0
            elif character != "\n":
                line = self._lines[self._row].ljust(self._column)
                self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
                self._column += 1
