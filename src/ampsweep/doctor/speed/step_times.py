"""Steps of a training without the doctor's hooks, and their times, taken in turn: a disturbance affects all alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

import numpy as np
import torch

from ampsweep.config.schema import PrecisionConfig
from ampsweep.data.base import Data
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import KeptBatches, assembled
from ampsweep.monitors.step_clock import Moments
from ampsweep.nested_tensors import map_tensors

_NUM_BATCHES: Final = 2  # batches per micro-batch that timed steps take in turn
_BLOCK_MS: Final = 30.0  # time of a block of steps, if a step is shorter
_MAX_STEPS: Final = 50
_MAX_ROUNDS: Final = 60
_MIN_ROUNDS: Final = 3
_LONG_MS: Final = 500.0  # a step that takes longer is warmed up only once
StepTimes = Sequence[float]  # times of a step in ms, each the mean of a block of steps


class BareTraining:
    """The examined training without the hooks of a replay, eagerly: it reads no loss, and its batches are in memory."""

    def __init__(self, examined: ExaminedTraining, precision: PrecisionConfig) -> None:
        config = replace(examined.config, precision=precision)
        self.precision, self.device = precision, examined.device
        built, self.trainer = assembled(config, examined.device, examined.data, examined.checkpoint)
        self.model = self.trainer.model
        self._flags = built.precision.flags
        first = self.trainer.next_batch
        number = _NUM_BATCHES * config.trainer.grad_accum_steps * len(built.turns)
        self.batches = [examined.data.train_batch(first + i) for i in range(number)]
        self._data = Repeated(examined.data, self.batches)

    def step(self, data: Data | None = None) -> None:
        """Take a step, on other data if given; an accelerator may still be computing it when this returns."""
        self.trainer.data = data or self._data
        self.trainer.step += 1
        with self._flags(), torch.compiler.set_stance("force_eager"):
            self.trainer.train_step()


class Repeated(KeptBatches):
    def __init__(self, data: KeptBatches, batches: Sequence[Any]) -> None:
        super().__init__(data, data.deadline_s)
        self._batches = batches

    def train_batch(self, index: int) -> Any:
        self.check_time()
        return self._batches[index % len(self._batches)]


def doubled(batch: Any) -> Any:
    return map_tensors(batch, lambda tensor: torch.cat([tensor, tensor]) if tensor.dim() else tensor)


@dataclass(frozen=True)
class Ratio:
    """Median and upper quartile of the quotients of two kinds of steps, block by block."""

    median: float
    high: float

    @staticmethod
    def of(above: StepTimes, below: StepTimes) -> "Ratio":
        median, high = np.quantile(np.divide(above, below), (0.5, 0.75))
        return Ratio(float(median), float(high))


def times_in_turn(steps: Sequence[Callable[[], object]], moments: Moments, *, seconds: float) -> list[list[float]]:
    """Time steps in turn, in blocks of 30 ms, after a warm-up: at least three rounds, or one if three take too long."""
    lengths = [timed_ms(step, moments) for step in steps]
    again = [timed_ms(step, moments) if ms < _LONG_MS else ms for step, ms in zip(steps, lengths, strict=True)]
    lengths = [*map(min, lengths, again)]
    counts = [max(1, min(_MAX_STEPS, round(_BLOCK_MS / length_ms))) for length_ms in lengths]
    num_rounds = _MIN_ROUNDS if 1e-3 * sum(lengths) <= max(seconds, 0.0) else 1
    end_s = monotonic() + seconds
    found = [list[float]() for _ in steps]
    while len(found[0]) < num_rounds or (monotonic() < end_s and len(found[0]) < _MAX_ROUNDS):
        for step, count, times in zip(steps, counts, found, strict=True):
            times.append(timed_ms(step, moments, count))
    return found


def timed_ms(call: Callable[[], object], moments: Moments, count: int = 1) -> float:
    """The mean time of so many calls, from an empty queue until the device is done."""
    moments.wait()
    start = moments.now()
    for _ in range(count):
        call()
    return moments.since_ms(start) / count
