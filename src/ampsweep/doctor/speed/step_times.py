"""Steps of a training without the doctor's hooks, and their times, taken in turn: a disturbance affects all alike."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Final

import torch

from ampsweep.config.schema import Config
from ampsweep.data.base import Data
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import TriedChange
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import assembled
from ampsweep.monitors.step_clock import Moments
from ampsweep.text import milliseconds

_NUM_BATCHES: Final = 2  # batches per micro-batch that timed steps take in turn
_BLOCK_MS: Final = 30.0  # time of a block of steps, if a step is shorter
_MAX_STEPS: Final = 50
_MAX_ROUNDS: Final = 60
_MIN_ROUNDS: Final = 3
_LONG_MS: Final = 500.0  # a step that takes longer is warmed up only once
StepTimes = Sequence[float]  # times of a step in ms, each the mean of a block of steps


class BareTraining:
    """The examined training, maybe changed, without the hooks of a replay, eagerly: it reads no loss but the first, and
    its batches are in memory. An edit holds inside `changed`."""

    def __init__(self, examined: ExaminedTraining, config: Config, edit: CodeEdit | None = None) -> None:
        self.precision, self.device, self.moments = config.precision, examined.device, Moments(examined.device)
        self.changed = nullcontext if edit is None else edit.applied
        with self.changed():
            built, self.trainer = assembled(config, examined.device, examined.data, examined.checkpoint)
        self.model, self._flags, self._data = self.trainer.model, built.precision.flags, examined.data
        first, number = self.trainer.next_batch, _NUM_BATCHES * config.trainer.grad_accum_steps * len(built.turns)
        self._batches = range(first, first + number)
        for index in self._batches:
            self._data.train_batch(index)
        self.first_loss: float | None = None  # of the first step, whose batch is the same in every training

    def step(self, data: Data | None = None) -> None:
        """Take a step, on other data if given; an accelerator may still be computing it when this returns."""
        self.trainer.data = data or self._data
        if data is None and self.trainer.next_batch not in self._batches:
            self.trainer.next_batch = self._batches.start
        self.trainer.step += 1
        with self._flags(), torch.compiler.set_stance("force_eager"):
            taken = self.trainer.train_step()
        if self.first_loss is None:
            self.first_loss = float(taken.loss)

    def timed_ms(self, count: int = 1) -> float:
        """The mean time of so many steps, with the edit."""
        with self.changed():
            return timed_ms(self.step, self.moments, count)


@dataclass(frozen=True, kw_only=True)
class TimedAgain(TriedChange):
    """The step timed with a change and without, in turn."""

    former_step_ms: float
    step_ms: float

    @property
    def gain_pct(self) -> float:
        return 100 * (1 - self.step_ms / self.former_step_ms)

    @property
    def sentence(self) -> str:
        before, after = milliseconds(self.former_step_ms), milliseconds(self.step_ms)
        return f"timed in turn, a step takes {after} with that instead of {before}"


def times_in_turn(blocks: Sequence[Callable[[int], float]], *, seconds: float) -> list[list[float]]:
    """Time steps in turn, in blocks of 30 ms, after a warm-up: at least three rounds, or one if three take too long.
    Each of `blocks` takes as many steps as it is told and returns their mean time in ms."""
    lengths = [block(1) for block in blocks]
    lengths = [min(ms, block(1)) if ms < _LONG_MS else ms for block, ms in zip(blocks, lengths, strict=True)]
    counts = [max(1, min(_MAX_STEPS, round(_BLOCK_MS / length_ms))) for length_ms in lengths]
    num_rounds = _MIN_ROUNDS if 1e-3 * sum(lengths) <= max(seconds, 0.0) else 1
    end_s = monotonic() + seconds
    found = [list[float]() for _ in blocks]
    while len(found[0]) < num_rounds or (monotonic() < end_s and len(found[0]) < _MAX_ROUNDS):
        for block, count, times in zip(blocks, counts, found, strict=True):
            times.append(block(count))
    return found


def timed_ms(call: Callable[[], object], moments: Moments, count: int = 1) -> float:
    """The mean time of so many calls, from an empty queue until the device is done."""
    moments.wait()
    start = moments.now()
    for _ in range(count):
        call()
    return moments.since_ms(start) / count
