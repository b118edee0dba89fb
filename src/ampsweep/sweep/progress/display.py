"""The live display of a command's runs."""

import math
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ampsweep.config.schema import Config
from ampsweep.records import RunRecord
from ampsweep.run.messages import MessagePrinter, Progress
from ampsweep.sweep.plan import Plan, PlannedRun
from ampsweep.sweep.progress.lines import LinePart, ended_line, fitted, running_line
from ampsweep.text import duration, plural

_DRAWN_PER_SECOND: Final = 2
_BAR_WIDTH: Final = 24


@dataclass
class Running:
    """The current run, and its pace by the times (seconds of one clock) at which its steps were reported."""

    run: PlannedRun
    doing: str  # the name of its phase
    began_s: float
    progress: Progress | None = None  # the latest
    _heard_s: float = 0.0
    _first: tuple[int, float] | None = None

    def heard(self, progress: Progress, now_s: float) -> None:
        self.progress, self._heard_s = progress, now_s
        self._first = self._first or (progress.step, now_s)

    def seconds_left(self, now_s: float) -> float | None:
        """Return the seconds left at the pace so far; None until two steps were reported."""
        if self.progress is None or self._first is None or self.progress.step == self._first[0]:
            return None
        (first, first_s), step = self._first, self.progress.step
        step_s = (self._heard_s - first_s) / (step - first)
        left_s = (self.progress.num_steps - step) * step_s - (now_s - self._heard_s)
        if self.run.max_seconds is not None:
            left_s = min(left_s, first_s + self.run.max_seconds - now_s)
        return max(left_s, 0.0)


class ProgressDisplay(MessagePrinter):
    """A line for each run that has ended and, on a terminal, a live part below them that disappears at the end.

    The live part shows the current run and the progress of the sweep. A pipe, a log file or a dumb terminal gets only
    the lines. `in_training_process`: draw on progress messages only, since a thread that draws by the clock would
    disturb timed steps.
    """

    def __init__(self, plan: Plan, *, in_training_process: bool = False) -> None:
        super().__init__()
        self._plan = plan
        self._outcomes: Counter[str] = Counter()
        self._running: Running | None = None
        self.num_elsewhere = self.num_queued = 0  # runs that go on in other processes, or wait for them
        self._began_s = self._marked_s = time.monotonic()
        # With FORCE_COLOR rich takes a file for a terminal: it gets colours, but no cursor movements.
        self._is_live, self._is_alone = self._console.is_interactive and sys.stderr.isatty(), in_training_process
        self._live = Live(
            console=self._console,
            get_renderable=lambda: self,
            auto_refresh=self._is_live and not in_training_process,
            refresh_per_second=_DRAWN_PER_SECOND,
            transient=True,
        )
        self._drawn_s = -math.inf

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start(refresh=True)
        if self._plan.num_finished:
            of = "" if self._plan.is_open else f" of {self._plan.num_runs}"
            self.say(f"{self._plan.num_finished}{of} runs finished earlier")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_message(self, message: object) -> None:
        super().on_message(message)
        if isinstance(message, Progress) and (running := self._running) is not None:
            now_s = time.monotonic()
            running.heard(message, now_s)
            if self._is_live and self._is_alone and now_s - self._drawn_s >= 1 / _DRAWN_PER_SECOND:
                self._drawn_s = now_s if message.loss is not None else -math.inf  # draw the first row at once
                self._live.refresh()

    def run_begins(self, config: Config | PlannedRun, doing: str = "starting") -> None:
        """Show that the run of `config` begins, or enters another phase."""
        began_s = time.monotonic() if self._running is None else self._running.began_s
        self._running = Running(self._plan.of(config), doing, began_s)

    def run_ends(self, config: Config | PlannedRun, record: RunRecord) -> None:
        """Print the line of a run that has ended."""
        run, running, now_s = self._plan.of(config), self._running, time.monotonic()
        took_s = _recorded_seconds(record) if running is None else now_s - running.began_s
        self._running, self._marked_s = None, now_s
        number = self._number()
        self._outcomes[record.status] += 1
        width = self._console.width if self._is_live else None
        self._print(ended_line(number, run, record, took_s, self._plan, width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the live part (rich's protocol)."""
        width, now_s, running = options.max_width, time.monotonic(), self._running
        if running is not None:
            doing, left_s = running.progress or running.doing, running.seconds_left(now_s)
            yield running_line(self._number(), running.run, doing, left_s, self._plan, width)
        if not self._is_alone:
            yield self._sweep(width, now_s)

    def _print(self, line: Text) -> None:
        with self._live._lock:  # rich's lock: the print would not erase what rich draws meanwhile
            super()._print(line)

    def _seconds_left(self, now_s: float) -> float | None:
        """Return the seconds left, by the mean time of the runs so far; None before the first has ended."""
        num_here = self._outcomes.total()
        if not num_here or self._plan.is_open:
            return None
        mean_s = (self._marked_s - self._began_s) / num_here
        since_s = 0.0 if self._running is None else min(now_s - self._marked_s, mean_s)
        return (self._plan.num_runs - self._num_ended) * mean_s - since_s

    def _sweep(self, width: int, now_s: float) -> RenderableType:
        done, total = self._num_ended, self._plan.num_runs
        others = [f"{count} {status}" for status, count in self._outcomes.items() if status != "completed"]
        counts = f"{done} of {'at most ' if self._plan.is_open else ''}{plural(total, 'run')} done"
        if others:
            counts += f" ({', '.join(others)})"
        times = f"{duration(now_s - self._began_s, whole=True)} so far"
        if done < total and (left_s := self._seconds_left(now_s)) is not None:
            times += f", about {duration(left_s, whole=True)} left"
        elsewhere = {"going on": self.num_elsewhere, "queued": self.num_queued}
        waited_for = [LinePart(f"{number} {what}", 1) for what, number in elsewhere.items() if number]
        parts = [LinePart(counts), *waited_for, LinePart(times, 2)]
        text = fitted(parts, None)
        if text.cell_len + _BAR_WIDTH + 2 > width:
            return fitted(parts, width)
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(ProgressBar(total, done, width=_BAR_WIDTH), text)
        return line

    @property
    def _num_ended(self) -> int:
        return self._plan.num_finished + self._outcomes.total()

    def _number(self) -> str:
        """The number of the current run in the sweep, such as '4/12', or '4' if their number is open."""
        number = str(self._num_ended + 1)
        return "" if self._is_alone else number if self._plan.is_open else f"{number}/{self._plan.num_runs}"


def _recorded_seconds(record: RunRecord) -> float | None:
    """Return the duration of the latest attempt by the record, in whole seconds; None below one."""
    began = record.attempts[-1].started_at if record.attempts else record.started_at
    if began is None or record.ended_at is None:
        return None
    return (datetime.fromisoformat(record.ended_at) - datetime.fromisoformat(began)).total_seconds() or None
