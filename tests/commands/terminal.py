"""A terminal in which a command runs, and the screen that its user sees."""

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
"""The beginning of a control sequence, of which the rest is still to come."""


class Screen:
    """What stands on a terminal of `width` columns, scrolled lines included; knows what rich writes, and no more.

    A character that it does not know how to show is an error; a line that runs over the edge goes on in the next.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines = [""]
        self._row = self._column = 0
        self.styles: set[str] = set()
        """Parameters of all colours and styles that were set."""

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._lines]

    def write(self, text: str) -> None:
        """Take complete control sequences only."""
        position = 0
        for control in _CONTROL.finditer(text):
            self._print(text[position : control.start()])
            self._obey(*control.groups())
            position = control.end()
        self._print(text[position:])

    def _print(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._next_line()
            elif character == "\r":
                self._column = 0
            else:
                assert character >= " ", repr(character)
                if self._column == self._width:
                    self._next_line()
                    self._column = 0
                line = self._lines[self._row].ljust(self._column)
                self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
                self._column += 1

    def _next_line(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append("")

    def _obey(self, parameters: str, letter: str) -> None:
        match letter:
            case "A":
                self._row -= int(parameters or 1)
                assert self._row >= 0, "above the top"
            case "K":
                assert parameters == "2"
                self._lines[self._row] = ""
            case "m":
                self.styles.add(parameters)
            case _:
                assert parameters == "?25", (parameters, letter)  # the cursor is hidden or shown


class Terminal:
    """Runs `command` in a terminal of its own; `screen` follows while something is waited for."""

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
        self.screen = Screen(width)
        self.raw = ""
        """Everything that was written."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._pending = ""

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def text(self) -> str:
        """All text that was written, without what moves or colours it."""
        return _CONTROL.sub("", self.raw)

    def wait_for(self, condition: Callable[[list[str]], object], what: str) -> list[str]:
        """The lines of the screen as soon as they meet the condition."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.screen.lines):
            assert self._read(), f"ended before {what}: {self.screen.lines}"
            assert time.monotonic() < deadline, f"waited in vain until {what}: {self.screen.lines}"
        return self.screen.lines

    def finish(self) -> int:
        """Wait for the end; returns the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        os.close(self._master)

    def _read(self) -> bool:
        """Show what has been written, for a moment; whether there is anybody left to write."""
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            part = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when the other side is closed
            part = b""
        written = self._pending + self._decoder.decode(part)
        complete = len(written) - len(_CUT_OFF.search(written)[0])
        self._pending = written[complete:]
        self.raw += written[:complete]
        self.screen.write(written[:complete])
        return bool(part)
