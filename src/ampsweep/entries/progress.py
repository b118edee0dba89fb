"""Live progress on a terminal; silent elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ampsweep.entries import messages


class ProgressDisplay:
    """Bars for the whole command and for the run that goes on; drawn on stderr when it is a terminal.

    Lines that the user must see are printed either way.
    """

    def __init__(self, num_runs: int) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._all: TaskID | None = None
        if num_runs > 1:
            self._all = self._bars.add_task("runs", total=num_runs, detail="")
        self._run: TaskID | None = None
        self._said: set[str] = set()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def run_begins(self, name: str) -> None:
        """A run called `name` starts."""
        self._run = self._bars.add_task(name, total=None, detail="")

    def on_message(self, message: object) -> None:
        """Show what a training process sent."""
        if isinstance(message, messages.Say):
            self.say(message.text)
        elif isinstance(message, messages.Progress) and self._run is not None:
            detail = f"loss {message.loss:.4f}"
            self._bars.update(self._run, total=message.num_steps, completed=message.step, detail=detail)

    def probe_ends(self, line: str) -> None:
        """What `run_begins` announced was a probe, and has ended; `line` says how."""
        if self._run is not None:
            self._bars.remove_task(self._run)
            self._run = None
        if self._console.is_terminal:
            self._console.print(line, highlight=False, markup=False)

    def run_ends(self, line: str) -> None:
        """The run has ended; `line` says how, for whoever watches."""
        self.probe_ends(line)
        if self._all is not None:
            self._bars.advance(self._all)

    def say(self, line: str) -> None:
        """Print a line, the same one only once."""
        if line not in self._said:
            self._said.add(line)
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
