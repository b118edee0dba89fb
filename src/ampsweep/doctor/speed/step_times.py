"""Steps of a training without the doctor's hooks, and their times, taken in turn: a disturbance affects all alike."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.config.schema import Config
from ampsweep.data.base import Data
from ampsweep.doctor.diagnosis import TriedChange
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import KeptBatches, assembled
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
    """The examined training without the hooks of a replay, eagerly: it reads no loss, and its batches are in memory."""

    def __init__(self, examined: ExaminedTraining, config: Config) -> None:
        self.precision, self.device = config.precision, examined.device
        built, self.trainer = assembled(config, examined.device, examined.data, examined.checkpoint)
        self.model = self.trainer.model
        self._flags = built.precision.flags
        first = self.trainer.next_batch
        number = _NUM_BATCHES * config.trainer.grad_accum_steps * len(built.turns)
        self.batches = [examined.data.train_batch(first + i) for i in range(number)]
        self._data = Repeated(examined.data, self.batches)
        self.first_loss: Tensor | None = None  # of the first step, on the device; the same batch in every training

    def step(self, data: Data | None = None) -> None:
        """Take a step, on other data if given; an accelerator may still be computing it when this returns."""
        self.trainer.data = data or self._data
        self.trainer.step += 1
        with self._flags(), torch.compiler.set_stance("force_eager"):
            taken = self.trainer.train_step()
        if self.first_loss is None:
            self.first_loss = taken.loss


class Repeated(KeptBatches):
    def __init__(self, data: KeptBatches, batches: Sequence[Any]) -> None:
        super().__init__(data, data.deadline_s)
        self._batches = batches

    def train_batch(self, index: int) -> Any:
        self.check_time()
        return self._batches[index % len(self._batches)]


@dataclass(frozen=True, kw_only=True)
class TimedAgain(TriedChange):
    """The step timed with a change and without, in turn."""

    former_sample_ms: float
    sample_ms: float
    with_that: str = "with that"

    @property
    def gain_pct(self) -> float:
        return 100 * (1 - self.sample_ms / self.former_sample_ms)

    @property
    def sentence(self) -> str:
        before, after = milliseconds(self.former_sample_ms), milliseconds(self.sample_ms)
        return f"timed in turn, a sample takes {after} {self.with_that} instead of {before}"


def times_in_turn(
    steps: Sequence[Callable[[], object]],
    moments: Moments,
    *,
    seconds: float,
    around_last: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[list[float]]:
    """Time steps in turn, in blocks of 30 ms, after a warm-up: at least three rounds, or one if three take too long.
    The last kind of step is taken inside of `around_last`, which is not timed."""
    kinds = [*zip(steps, [*[nullcontext] * (len(steps) - 1), around_last], strict=True)]

    def block(
        step: Callable[[], object], around: Callable[[], AbstractContextManager[object]], count: int = 1
    ) -> float:
        with around():
            return timed_ms(step, moments, count)

    lengths = [block(*kind) for kind in kinds]
    lengths = [min(ms, block(*kind)) if ms < _LONG_MS else ms for kind, ms in zip(kinds, lengths, strict=True)]
    counts = [max(1, min(_MAX_STEPS, round(_BLOCK_MS / length_ms))) for length_ms in lengths]
    num_rounds = _MIN_ROUNDS if 1e-3 * sum(lengths) <= max(seconds, 0.0) else 1
    end_s = monotonic() + seconds
    found = [list[float]() for _ in steps]
    while len(found[0]) < num_rounds or (monotonic() < end_s and len(found[0]) < _MAX_ROUNDS):
        for kind, count, times in zip(kinds, counts, found, strict=True):
            times.append(block(*kind, count))
    return found


def timed_ms(call: Callable[[], object], moments: Moments, count: int = 1) -> float:
    """The mean time of so many calls, from an empty queue until the device is done."""
    moments.wait()
    start = moments.now()
    for _ in range(count):
        call()
    return moments.since_ms(start) / count
