"""Lines that the user must see, whether on a terminal or in a log."""

from rich.text import Text

from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.redaction import hide
from ampsweep.report.terminal import Terminal
from ampsweep.run import messages


class Speaker:
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
        if isinstance(message, messages.Say):
            self.say(message.text)

    def run_begins(self, config: Config, doing: str = "starting") -> None:
        """The run of `config` starts, or starts with something else."""

    def run_ends(self, config: Config, record: RunRecord) -> None:
        """The run of `config` has ended with this record."""

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
