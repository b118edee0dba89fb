"""A training whose loss is examined: its fault, and trials that tell whether a change mends it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile
from statistics import median
from typing import Final

import torch
from torch import Tensor

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.loss.fault import FaultSigns, Judge
from ampsweep.doctor.loss.variant import Variant, vanished_share
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import Replay, TakenSteps
from ampsweep.numeric_formats import FORMATS

MOST_VANISHED: Final = 0.5
"""The share of gradient elements that may be zero without being so in float32: half of them, and most weights learn."""
_NUM_REPLAYS: Final = 4
_SEED: Final = 8191


class OutOfTimeError(Exception):
    """Raised by a trial that there is no time for."""


class LossCase:
    """The fault of a training, found from its steps and those in float32."""

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self.own, self.baseline = patient.own_steps, patient.baseline_steps
        self.judge = Judge(
            patient.config.precision.dtype,
            self.baseline.steps,
            patient.config.report.margin_pct,
            cache(partial(_perturbed_losses, patient, self.num_steps)),
            cache(partial(_losses_without, patient, self.num_steps)),
        )
        self.precision: PrecisionConfig = patient.config.precision
        """The precision of trials: that of the training, but for a scale at which the fault shows at once."""
        self.fault: FaultSigns | None = self.judge.fault(self.own.steps) or self._both_diverge() or self._vanished()

    @property
    def num_steps(self) -> int:
        """The steps that can be compared: those before the loss in float32 is not finite."""
        finite = takewhile(lambda one: math.isfinite(one.loss), self.baseline.steps)
        return min(len(self.own.steps), sum(1 for _ in finite))

    @property
    def is_also_in_float32(self) -> bool:
        """True if the loss is not finite in float32 either, or grows: half of those from the fault on are more than
        twice the first one. A single batch may have a large loss."""
        assert self.fault is not None
        losses = [one.loss for one in self.baseline.steps]
        if self.fault.replayed == 1:
            return not math.isfinite(losses[0])
        later = losses[self.fault.replayed - 1 :]
        return not all(map(math.isfinite, losses)) or (bool(later) and median(later) > 2 * abs(losses[0]))

    def mends(self, changed: Variant, num_steps: int | None = None) -> bool:
        """Return True if steps with a change have no fault; by default as many as show it.

        Raises:
            OutOfTimeError: time is up before it is known.
        """
        assert self.fault is not None
        if self.patient.seconds_left <= 0:
            raise OutOfTimeError
        if changed.precision is None:
            changed = replace(changed, precision=self.precision)
        wanted = num_steps or self.fault.replayed
        if self.fault.sign == "vanished_gradients":
            return vanished_share(self.patient, changed) < MOST_VANISHED
        taken = changed.steps(self.patient, wanted)
        if taken.error is None and len(taken.steps) < wanted:
            raise OutOfTimeError
        return len(taken.steps) == wanted and not self.has_fault(taken)

    def begin_at_scale(self, scale: float) -> None:
        """Have trials begin at a scale, at which the very first step shows the fault if any does."""
        assert self.fault is not None
        self.precision = replace(self.precision, init_scale=scale)
        taken = Variant(precision=self.precision).steps(self.patient, 1)
        if self.has_fault(taken):
            self.fault = replace(self.fault, replayed=1)

    def has_fault(self, taken: TakenSteps) -> bool:
        """Tell whether steps have a fault, or end with an error."""
        return taken.error is not None or self.judge.fault(taken.steps) is not None

    def _both_diverge(self) -> FaultSigns | None:
        """The fault of a loss that is not finite in float32 either: one of the training, not of its precision."""
        steps = self.own.steps
        first = next((number for number, one in enumerate(steps, start=1) if not math.isfinite(one.loss)), None)
        return None if first is None else self.judge.signs("nonfinite_loss", first, steps)

    def _vanished(self) -> FaultSigns | None:
        """The fault of a gradient most of which is zero, and not in float32; only float16 has so short a range."""
        config = self.patient.config.precision
        if "float16" not in (config.dtype, config.parameters) or not self.own.steps:
            return None
        share = vanished_share(self.patient, Variant())
        if share < MOST_VANISHED:
            return None
        return self.judge.signs("vanished_gradients", 1, self.own.steps, vanished_pct=100 * share)


def _losses_without(patient: Patient, num_steps: int, skipped: frozenset[int]) -> list[float]:
    """Take the steps in float32 again, without those of the optimizers that are skipped."""
    replay = patient.baseline()
    first = replay.trainer.step

    def skip(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if replay.trainer.step - first in skipped:
            optimizer.zero_grad()  # without gradients it changes nothing

    for optimizer in replay.trainer.optimizers.values():
        optimizer.register_step_pre_hook(skip)
    return [replay.step().loss for _ in range(num_steps)]


def _perturbed_losses(patient: Patient, num_steps: int) -> list[list[float]]:
    """The losses of several float32 replays with errors in the weights as large as the arm's rounding makes them.

    Before each forward pass every weight gets a relative error drawn evenly from [-u, u], u being the unit roundoff of
    the dtype that the arm computes in. The errors stay where the arm's parameters have that dtype; under autocast,
    which rounds copies of weights, they are taken back after the step.
    """
    roundoff = FORMATS[patient.config.precision.dtype].unit_roundoff
    stay = patient.config.precision.parameters != "float32"
    curves: list[list[float]] = []
    for number in range(_NUM_REPLAYS):
        if patient.seconds_left <= 0:
            break
        replay, losses = patient.baseline(), list[float]()
        generator = torch.Generator(replay.device).manual_seed(_SEED + number)
        for _ in range(num_steps):
            with _perturbed(replay, roundoff, generator, stay=stay):
                losses.append(replay.step().loss)
        curves.append(losses)
    return curves


@contextmanager
def _perturbed(replay: Replay, roundoff: float, generator: torch.Generator, *, stay: bool) -> Iterator[None]:
    errors: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for parameter in replay.model.parameters():
            if parameter.is_floating_point():
                even = torch.rand(parameter.shape, generator=generator, device=parameter.device, dtype=torch.float32)
                errors.append((parameter, parameter * (even * 2 - 1) * roundoff))
                parameter.add_(errors[-1][1])
    yield
    if not stay:
        with torch.no_grad():
            for noisy, error in errors:
                noisy.sub_(error)
