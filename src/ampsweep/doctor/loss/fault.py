"""The fault of a training's losses: how it shows, and trials that tell whether a change mends it."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import takewhile
from statistics import median
from typing import Final, Literal

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.diagnosis import fact_text
from ampsweep.doctor.loss.variant import Variant, vanished_share
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import Replay, TakenStep, TakenSteps
from ampsweep.numeric_formats import FORMATS

Sign = Literal[
    "nonfinite_loss",
    "nonfinite_gradients",
    "skipped_steps",
    "different_loss",
    "worse_loss",
    "vanished_gradients",
]
"""The sign of a fault: the loss has inf or NaN; gradients have, and nothing skips the step; the scaler skips steps
whatever the scale; the first loss, of the same weights, is another; later losses are larger; most of the gradient is
zero."""

_SENTENCES: Final[dict[Sign, str]] = {
    "nonfinite_loss": "the loss is {loss} at step {step}, and {baseline_loss} in float32",
    "nonfinite_gradients": "gradients are not finite at step {step}, and nothing skips it; they are in float32",
    "skipped_steps": "{num_skipped} of {num_steps} steps are skipped, still at step {step} with a scale of {scale}; "
    "float32 takes them all",
    "different_loss": "the first loss differs from that in float32 by {gap}; errors in the weights as large as "
    "rounding explain {allowed_gap}",
    "worse_loss": "the mean loss of the last steps up to {step} differs from that in float32 by {gap}; errors in the "
    "weights as large as rounding explain {allowed_gap}",
    "vanished_gradients": "{vanished_pct} % of the gradient is zero where it is not in float32",
}

NOT_FINITE: Final[frozenset[Sign]] = frozenset({"nonfinite_loss", "nonfinite_gradients", "skipped_steps"})
"""Signs of inf or NaN, whose origins can be traced."""

_MOST_SKIPS: Final = int(math.log2(PrecisionConfig.init_scale)) + 1
"""Steps that torch's first scale needs to come below one: a scaler that skips as many does not find its scale."""
_LAST_PART: Final = 3
"""The last of so many equal parts of the steps is where losses are compared."""
_CONFIDENCE: Final = 0.999
_MOST_VANISHED: Final = 0.5
"""The share of gradient elements that may be zero without being so in float32: half of them, and most weights learn."""
_NUM_REPLAYS: Final = 4
_SEED: Final = 8191


@dataclass(frozen=True, kw_only=True)
class FaultSigns:
    """A fault of a training that float32 does not have, and its signs."""

    sign: Sign
    step: int
    """The first step of the training that shows it."""
    num_steps: int
    """Steps that were compared."""
    dtype: str
    loss: float | None = None
    baseline_loss: float | None = None
    scale: float | None = None
    num_skipped: int | None = None
    gap: float | None = None
    """For a loss that differs: the mean difference from float32."""
    allowed_gap: float | None = None
    """The gap that rounding explains."""
    vanished_pct: float | None = None
    """The share of the gradient's elements that are zero, and not so in float32."""
    replayed: int = field(default=1, repr=False)
    """The number of that step within the replay, from 1."""

    @property
    def sentence(self) -> str:
        """A clause on how the fault shows."""
        return _SENTENCES[self.sign].format_map({name: fact_text("", value) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Judge:
    """Finds a fault of steps that those in float32 have not."""

    dtype: str
    """The dtype that the training computes in."""
    baseline: Sequence[TakenStep]
    """The steps in float32."""
    margin_pct: float
    """The gap, in percent of the baseline's loss, within which two arms count as having learned the same."""
    perturbed: Callable[[], Sequence[Sequence[float]]]
    """Returns the losses of float32 replays whose weights were perturbed as the arm's rounding does, (replays, steps).
    Called only if a loss is worse than in float32 by more than the margin."""
    skipping: Callable[[frozenset[int]], Sequence[float]]
    """Returns the losses in float32 with some steps, by number from 1, left out: the scaler's first skips put a
    training back by as many steps, which is no fault. Called only if a loss is worse."""

    @property
    def _base(self) -> list[float]:
        return [one.loss for one in self.baseline]

    def fault(self, steps: Sequence[TakenStep]) -> FaultSigns | None:
        """Find the fault of some first steps."""
        return self._nonfinite(steps) or self._skipped(steps) or self._different(steps) or self._worse(steps)

    def signs(self, sign: Sign, number: int, steps: Sequence[TakenStep], **facts: float) -> FaultSigns:
        """The signs of a fault that the step of this number, from 1, shows first."""
        own, base = steps[number - 1], self._base
        return FaultSigns(
            sign=sign,
            step=own.number,
            num_steps=min(len(steps), len(base)),
            dtype=self.dtype,
            loss=own.loss,
            baseline_loss=base[number - 1] if number <= len(base) else None,
            scale=own.scale,
            num_skipped=None if own.scale is None else sum(one.is_skipped for one in steps),
            replayed=number,
            **facts,
        )

    def _nonfinite(self, steps: Sequence[TakenStep]) -> FaultSigns | None:
        for number, (own, base) in enumerate(zip(steps, self.baseline, strict=False), start=1):
            if not math.isfinite(base.loss):
                return None
            if not math.isfinite(own.loss):
                return self.signs("nonfinite_loss", number, steps)
            if own.scale is None and own.has_nonfinite_gradients and not base.has_nonfinite_gradients:
                return self.signs("nonfinite_gradients", number, steps)
        return None

    def _skipped(self, steps: Sequence[TakenStep]) -> FaultSigns | None:
        skipped = [number for number, one in enumerate(steps, start=1) if one.is_skipped]
        if not skipped:
            return None
        hopeless = [n for n in skipped if (scale := steps[n - 1].scale) is not None and scale <= 1]
        if hopeless:
            return self.signs("skipped_steps", hopeless[0], steps)
        if len(skipped) >= _MOST_SKIPS:
            return self.signs("skipped_steps", skipped[-1], steps)
        return None

    def _different(self, steps: Sequence[TakenStep]) -> FaultSigns | None:
        if not steps or not self._base or not math.isfinite(base := self._base[0]):
            return None
        gap = steps[0].loss - base
        if abs(gap) <= self.margin_pct / 100 * abs(base):
            return None
        allowed = self._largest(slice(0, 1), base) - base
        return self.signs("different_loss", 1, steps, gap=gap, allowed_gap=allowed) if abs(gap) > allowed else None

    def _worse(self, steps: Sequence[TakenStep]) -> FaultSigns | None:
        num_steps = min(len(steps), len(self._base))
        if not num_steps or not all(map(math.isfinite, self._base[:num_steps])):
            return None
        part = slice(num_steps - max(1, num_steps // _LAST_PART), num_steps)
        own, exact = float(np.mean([one.loss for one in steps[part]])), float(np.mean(self._base[part]))
        base = exact
        if not self._is_far(own, base):
            return None
        if skipped := frozenset(number for number, one in enumerate(steps, start=1) if one.is_skipped):
            base = float(np.mean(self.skipping(skipped)[part]))
            if not self._is_far(own, base):
                return None
        allowed = self._largest(part, exact) - exact
        if own - base <= allowed:
            return None
        return self.signs("worse_loss", num_steps, steps, gap=own - base, allowed_gap=allowed)

    def _largest(self, steps: slice, baseline: float) -> float:
        """The largest mean loss over some steps that one more perturbed replay may have, at 99.9 %.

        It is the prediction interval of one more draw from a normal distribution (G. Hahn and W. Meeker, "Statistical
        Intervals", 1991, section 4.7); infinite with fewer than two replays.
        """
        means = [float(np.mean(one[steps])) for one in self.perturbed() if len(one) >= (steps.stop or 0)]
        if len(means) < 2 or not all(map(math.isfinite, means)):
            return math.inf
        spread = float(np.std(means, ddof=1)) * math.sqrt(1 + 1 / len(means))
        return max(float(np.mean(means)), baseline) + float(stdtrit(len(means) - 1, _CONFIDENCE)) * spread

    def _is_far(self, own: float, base: float) -> bool:
        """Tell whether a loss is above another by more than the margin, or has fallen less than half as far."""
        margin, fall = self.margin_pct / 100 * abs(base), self._base[0] - base
        return own - base > (min(margin, fall / 2) if fall > margin else margin)


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
            return vanished_share(self.patient, changed) < _MOST_VANISHED
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
        if share < _MOST_VANISHED:
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
        replay = patient.baseline()
        generator = torch.Generator(replay.device).manual_seed(_SEED + number)
        replay.around_step = partial(_perturbed, replay, roundoff, generator, stay=stay)
        curves.append([replay.step().loss for _ in range(num_steps)])
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
