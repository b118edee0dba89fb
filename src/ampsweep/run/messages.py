"""Messages from a training process to its parent, and their printer."""

from dataclasses import dataclass

from rich.text import Text

from ampsweep.config.schema import Config
from ampsweep.records import RunRecord
from ampsweep.redaction import hide
from ampsweep.report.console import Terminal


@dataclass(frozen=True, slots=True)
class Progress:
    """The training's progress; a figure is None if it is unknown."""

    step: int
    num_steps: int
    loss: float | None = None
    scale: float | None = None
    peak_memory_gib: float | None = None  # allocated tensor bytes


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the user."""

    text: str


class MessagePrinter:
    """Prints lines for the user on stderr, each once; subclasses show progress, too."""

    def __init__(self) -> None:
        self._console = Terminal(stderr=True)
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line, redacted, unless it was printed before."""
        line = hide(line)
        if line not in self._said:
            self._said.add(line)
            self._print(Text(line))

    def on_message(self, message: object) -> None:
        if isinstance(message, Say):
            self.say(message.text)

    def run_begins(self, config: Config, doing: str = "starting") -> None:
        """Called as a run begins, or begins another phase."""

    def run_ends(self, config: Config, record: RunRecord) -> None:
        """Called when a run has ended."""

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
