"""A short run, of which nothing is kept, to estimate the time of a long one: in a process of its own, as a run is."""

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from rich.text import Text

from ampsweep.config.schema import Config, TrainerConfig
from ampsweep.launch.isolated_process import ChildError
from ampsweep.records import read_history
from ampsweep.run.isolated_run import run_in_own_process
from ampsweep.run.messages import MessagePrinter, Progress
from ampsweep.run.request import RunRequest

_STEPS: Final = 5
_MORE_STEPS: Final = 25  # to tell a step's time by the difference
_UNLIKE_LATER: Final = 1  # the first step, which allocates
_LONGEST_S: Final = 5.0  # of the steps; one is always timed


@dataclass(frozen=True)
class ShortRun:
    """Seconds of the parts of a run. Not measured are W&B, checkpoints, and a prediction, which other seeds share."""

    step_s: float
    start_s: float  # to start the process and to build
    rest_s: float  # beside the steps: `start_s`, and to trace a step, evaluate at the end, and write
    eval_s: float = 0.0  # of an evaluation between steps

    def seconds(self, trainer: TrainerConfig, num_steps: int) -> float:
        """Estimate the seconds of a run of so many steps."""
        num_evaluations = (num_steps - 1) // (trainer.eval_every or num_steps)
        until_last_step_s = num_steps * self.step_s + num_evaluations * self.eval_s
        if trainer.max_seconds is not None:
            until_last_step_s = min(until_last_step_s, trainer.max_seconds)
        return until_last_step_s + self.rest_s


def short_run(config: Config) -> ShortRun | None:
    """Time a run of a few steps; None if its device ran out of memory. ChildError: it failed."""
    if (run := _run(config)) is None:
        return None
    if run.steps_s:
        step_s = statistics.median(run.steps_s[_UNLIKE_LATER:] or run.steps_s)
    elif (longer := _run(config, num_steps=_MORE_STEPS)) is not None:  # no times, as of an emulated mode
        more = longer.num_steps - run.num_steps
        step_s = max(0.0, longer.took_s - run.took_s) / more if more else (run.took_s - run.start_s) / run.num_steps
    else:
        return None
    eval_s = 0.0
    if config.trainer.eval_every is not None and (evaluated := _run(config, eval_every=1)) is not None:
        eval_s = max(0.0, evaluated.took_s - run.took_s) / (_STEPS - 1)  # at the end each has one
    return ShortRun(step_s, run.start_s, max(0.0, run.took_s - run.num_steps * step_s), eval_s)


class _Run(NamedTuple):
    took_s: float
    start_s: float
    num_steps: int
    steps_s: list[float]  # without the traced step's


def _run(config: Config, num_steps: int = _STEPS, eval_every: int | None = None) -> _Run | None:
    trainer = replace(config.trainer, steps=num_steps, epochs=None, max_seconds=_LONGEST_S, log_every=1)
    trainer = replace(trainer, eval_every=eval_every or num_steps + 1, patience=None, checkpoint_every=None)
    tracking = replace(config.tracking, mode="disabled")
    config = replace(config, trainer=trainer, tracking=tracking, resume=None, into=None, dry_run=False)
    with TemporaryDirectory(prefix="ampsweep-") as folder:
        began_s, start = time.monotonic(), _Start()
        record = run_in_own_process(RunRequest(config, Path(folder), in_sweep=True), start)
        took_s, rows = time.monotonic() - began_s, read_history(Path(folder))
    if record.status == "failed":
        raise ChildError(f"{record.arm} failed: {record.error}")
    if record.status == "oom" or not rows or start.ended_s is None:
        return None
    steps_s = [row["perf/step_ms"] / 1000 for row in rows if "perf/step_ms" in row]
    return _Run(took_s, start.ended_s - began_s, len(rows), steps_s)


class _Start(MessagePrinter):
    """Notes when the first step begins, and prints nothing: the run itself will."""

    ended_s: float | None = None

    def on_message(self, message: object) -> None:
        if self.ended_s is None and isinstance(message, Progress):
            self.ended_s = time.monotonic()

    def _print(self, line: Text) -> None:
        pass
