"""Messages from a training process to the process that started it, and the printer of messages for the user."""

from dataclasses import dataclass

from rich.text import Text

from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.redaction import hide
from ampsweep.report.terminal import Terminal


@dataclass(frozen=True, slots=True)
class Progress:
    """A training has reached `step` of `num_steps`; a figure is None if it is not known yet, or never will be."""

    step: int
    num_steps: int
    loss: float | None = None
    scale: float | None = None
    peak_memory_gib: float | None = None
    """The peak of allocated tensor bytes so far."""


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the user."""

    text: str


class MessagePrinter:
    """Prints lines for the user on stderr, each once, and nothing about the progress of runs.

    A launcher's worker uses it as it is: the process that launched the worker shows the runs.
    """

    def __init__(self) -> None:
        self._console = Terminal(stderr=True)
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line without its secrets; the same line is printed only once."""
        line = hide(line)
        if line not in self._said:
            self._said.add(line)
            self._print(Text(line))

    def on_message(self, message: object) -> None:
        """Handle a message that a training process sent."""
        if isinstance(message, Say):
            self.say(message.text)

    def run_begins(self, config: Config, doing: str = "starting") -> None:
        """Note that the run of `config` begins, or begins another phase."""

    def run_ends(self, config: Config, record: RunRecord) -> None:
        """Note that the run of `config` has ended with this record."""

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
