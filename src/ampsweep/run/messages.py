"""Messages of a training process to the process that started it, and the printer of those for the user."""

from dataclasses import dataclass

from rich.text import Text

from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.redaction import hide
from ampsweep.report.terminal import Terminal


@dataclass(frozen=True, slots=True)
class Progress:
    """A training has come to `step` of `num_steps`; None: not known yet, or never."""

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
    """Prints on stderr what is said, each line once, and nothing else of the runs it is told of.

    All that a launcher's worker does: the process that launched it shows the runs.
    """

    def __init__(self) -> None:
        self._console = Terminal(stderr=True)
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """Print a line, the same one only once, without the secrets in it."""
        line = hide(line)
        if line not in self._said:
            self._said.add(line)
            self._print(Text(line))

    def on_message(self, message: object) -> None:
        """Take what a training process sent."""
        if isinstance(message, Say):
            self.say(message.text)

    def run_begins(self, config: Config, doing: str = "starting") -> None:
        """The run of `config` starts, or starts with something else."""

    def run_ends(self, config: Config, record: RunRecord) -> None:
        """The run of `config` has ended with this record."""

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
