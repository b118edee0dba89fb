"""Detection of a fault in a training's losses, and trials that show if a change fixes it."""

import math
from collections.abc import Callable, Sequence
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
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.loss.variant import Variant, vanished_share
from ampsweep.doctor.replay import OutOfTimeError, Replay, TakenStep, TakenSteps
from ampsweep.numeric_formats import FORMATS

Sign = Literal[
    "nonfinite_loss", "nonfinite_gradients", "skipped_steps", "different_loss", "worse_loss", "vanished_gradients"
]
"""How a fault shows: inf or NaN in the loss; inf or NaN in gradients and no scaler to skip the step; steps skipped at
any scale; a first loss that differs from the same weights; larger losses later on; mostly zero gradients."""

_SENTENCES: Final[dict[Sign, str]] = {
    "nonfinite_loss": "the loss is {loss} at step {step}; in float32 it is {baseline_loss}",
    "nonfinite_gradients": "gradients are not finite at step {step}, and nothing skips it; they are in float32",
    "skipped_steps": "{num_skipped} of {num_steps} steps are skipped, still at step {step} with a scale of {scale}; "
    "float32 takes them all",
    "different_loss": "the first loss differs from that in float32 by {gap}; errors in the weights as large as "
    "rounding explain {allowed_gap}",
    "worse_loss": "the mean loss of the last steps up to {step} differs from that in float32 by {gap}; errors in the "
    "weights as large as rounding explain {allowed_gap}",
    "vanished_gradients": "{vanished_pct} % of the gradient is zero where it is not in float32",
}

Accepted = Literal["close", "equal", "finite"]
"""What a change has to reach: a first loss within the margin, losses as far from float32's as rounding explains, or a
finite loss."""

NOT_FINITE: Final[frozenset[Sign]] = frozenset({"nonfinite_loss", "nonfinite_gradients", "skipped_steps"})

_MOST_SKIPS: Final = int(math.log2(PrecisionConfig.init_scale)) + 1  # skips from torch's scale to below 1
_LAST_PART: Final = 3  # losses are compared over the last third of the steps
_CONFIDENCE: Final = 0.999
_MOST_VANISHED: Final = 0.5  # gradients are a fault if this share of their elements is zero without being so in float32
_NUM_REPLAYS: Final = 4
_SEED: Final = 8191


@dataclass(frozen=True, kw_only=True)
class FaultSigns:
    sign: Sign
    step: int  # the first step of the training that shows it
    num_steps: int  # steps that were compared
    dtype: str
    loss: float | None = None
    baseline_loss: float | None = None
    scale: float | None = None
    num_skipped: int | None = None
    gap: float | None = None  # the mean difference from the loss in float32
    allowed_gap: float | None = None  # the gap that rounding explains
    vanished_pct: float | None = None  # the share of gradient elements that are zero, but not in float32
    replayed: int = field(default=1, repr=False)  # the number of that step within the replay, from 1

    @property
    def sentence(self) -> str:
        return _SENTENCES[self.sign].format_map({name: fact_text("", value) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Judge:
    dtype: str  # the dtype that the training computes in
    baseline: Sequence[TakenStep]
    margin_pct: float  # two losses within this gap, in percent of the baseline's, count as equal
    perturbed: Callable[[], Sequence[Sequence[float]]]
    """Returns the losses of float32 replays whose weights were perturbed as the arm's rounding does, (replays, steps).
    Called only if a loss differs from float32's by more than the margin."""
    skipping: Callable[[frozenset[int]], Sequence[float]]
    """Returns the losses in float32 with some steps, numbered from 1, skipped. A scaler's first skips set a training
    back by as many steps, which is no fault. Called only if a loss is worse."""

    @property
    def _base(self) -> list[float]:
        return [step.loss for step in self.baseline]

    def fault(self, steps: Sequence[TakenStep]) -> FaultSigns | None:
        return self._nonfinite(steps) or self._skipped(steps) or self._different(steps) or self._worse(steps)

    def signs(self, sign: Sign, number: int, steps: Sequence[TakenStep], **facts: float) -> FaultSigns:
        """Describe a fault that first shows in step `number`, counted from 1."""
        own, base = steps[number - 1], self._base
        return FaultSigns(
            sign=sign,
            step=own.number,
            num_steps=min(len(steps), len(base)),
            dtype=self.dtype,
            loss=own.loss,
            baseline_loss=base[number - 1] if number <= len(base) else None,
            scale=own.scale,
            num_skipped=None if own.scale is None else sum(step.is_skipped for step in steps),
            replayed=number,
            **facts,
        )

    def is_close(self, steps: Sequence[TakenStep]) -> bool:
        """Return True if the first loss, of the same weights, is within the margin."""
        return abs(steps[0].loss - self._base[0]) <= self.margin_pct / 100 * abs(self._base[0])

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
        skipped = [number for number, step in enumerate(steps, start=1) if step.is_skipped]
        hopeless = [n for n in skipped if (scale := steps[n - 1].scale) is not None and scale <= 1]
        if hopeless:
            return self.signs("skipped_steps", hopeless[0], steps)
        return self.signs("skipped_steps", skipped[-1], steps) if len(skipped) >= _MOST_SKIPS else None

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
        own, exact = float(np.mean([step.loss for step in steps[part]])), float(np.mean(self._base[part]))
        base = exact
        if not self._is_far(own, base):
            return None
        if skipped := frozenset(number for number, step in enumerate(steps, start=1) if step.is_skipped):
            base = float(np.mean(self.skipping(skipped)[part]))
            if not self._is_far(own, base):
                return None
        allowed = self._largest(part, exact) - exact
        if own - base <= allowed:
            return None
        return self.signs("worse_loss", num_steps, steps, gap=own - base, allowed_gap=allowed)

    def _largest(self, steps: slice, baseline: float) -> float:
        """The largest mean loss over some steps of another perturbed replay, at 99.9 %: the prediction interval for a
        further normal draw (Hahn and Meeker, "Statistical Intervals", 1991, 4.7); inf with fewer than two replays."""
        means = [float(np.mean(losses[steps])) for losses in self.perturbed() if len(losses) >= (steps.stop or 0)]
        if len(means) < 2 or not all(map(math.isfinite, means)):
            return math.inf
        spread = float(np.std(means, ddof=1)) * math.sqrt(1 + 1 / len(means))
        return max(float(np.mean(means)), baseline) + float(stdtrit(len(means) - 1, _CONFIDENCE)) * spread

    def _is_far(self, own: float, base: float) -> bool:
        """Return True if a loss is higher by more than the margin, or has fallen less than half as far."""
        margin, fall = self.margin_pct / 100 * abs(base), self._base[0] - base
        return own - base > (min(margin, fall / 2) if fall > margin else margin)


class LossCase:
    def __init__(self, examined: ExaminedTraining) -> None:
        self.examined = examined
        self.own, self.baseline = examined.own_steps, examined.baseline_steps
        self.judge = Judge(
            examined.config.precision.dtype,
            self.baseline.steps,
            examined.config.report.margin_pct,
            cache(partial(_perturbed_losses, examined, self.num_steps)),
            cache(partial(_losses_without, examined, self.num_steps)),
        )
        self.accepted: Accepted = "equal"
        self.precision: PrecisionConfig = examined.config.precision
        """The precision of trials: that of the training, except for a scale at which the fault shows at once."""
        self.fault: FaultSigns | None = self.judge.fault(self.own.steps) or self._both_diverge() or self._vanished()

    @property
    def num_steps(self) -> int:
        """Steps that can be compared: those before the loss in float32 ceases to be finite."""
        finite = takewhile(lambda step: math.isfinite(step.loss), self.baseline.steps)
        return min(len(self.own.steps), sum(1 for _ in finite))

    @property
    def autocast(self) -> str | None:
        """The type of the device that autocast is on for; None if it is off."""
        return self.examined.device.type if self.precision.autocast else None

    @property
    def is_also_in_float32(self) -> bool:
        """True if the float32 loss is not finite either, or its median from the fault on is over twice the first."""
        assert self.fault is not None
        losses = [step.loss for step in self.baseline.steps]
        if self.fault.replayed == 1:
            return not math.isfinite(losses[0])
        later = losses[self.fault.replayed - 1 :]
        return not all(map(math.isfinite, losses)) or (bool(later) and median(later) > 2 * abs(losses[0]))

    def is_fixed_by(self, changed: Variant, num_steps: int | None = None) -> bool:
        """Return True if steps with a change, by default as many as show the fault, have none; or OutOfTimeError."""
        assert self.fault is not None
        if changed.precision is None:
            changed = replace(changed, precision=self.precision)
        wanted = num_steps or self.fault.replayed
        if self.fault.sign == "vanished_gradients":
            return vanished_share(self.examined, changed) < _MOST_VANISHED
        taken = changed.steps(self.examined, wanted)
        if taken.error is None and len(taken.steps) < wanted:
            raise OutOfTimeError
        return len(taken.steps) == wanted and not self.has_fault(taken)

    def begin_at_scale(self, scale: float) -> None:
        """Start trials at a scale at which the first step already shows the fault, if any does."""
        assert self.fault is not None
        self.precision = replace(self.precision, init_scale=scale)
        if self.has_fault(Variant(precision=self.precision).steps(self.examined, 1)):
            self.fault = replace(self.fault, replayed=1)

    def has_fault(self, taken: TakenSteps) -> bool:
        fault = self.judge.fault(taken.steps)
        if self.accepted == "finite":
            return taken.error is not None or (fault is not None and fault.sign in NOT_FINITE)
        is_far = self.accepted == "close" and not self.judge.is_close(taken.steps)
        return taken.error is not None or fault is not None or is_far

    def _both_diverge(self) -> FaultSigns | None:
        """The fault of a loss that is not finite in float32 either: precision did not cause it."""
        steps = self.own.steps
        first = next((number for number, step in enumerate(steps, start=1) if not math.isfinite(step.loss)), None)
        return None if first is None else self.judge.signs("nonfinite_loss", first, steps)

    def _vanished(self) -> FaultSigns | None:
        config = self.examined.config.precision
        if "float16" not in (config.dtype, config.parameters) or not self.own.steps:
            return None  # only float16 has so short a range
        share = vanished_share(self.examined, Variant())
        if share < _MOST_VANISHED:
            return None
        return self.judge.signs("vanished_gradients", 1, self.own.steps, vanished_pct=100 * share)


def _losses_without(examined: ExaminedTraining, num_steps: int, skipped: frozenset[int]) -> list[float]:
    replay = examined.baseline()
    first = replay.trainer.step

    def skip(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if replay.trainer.step - first in skipped:
            optimizer.zero_grad()  # without gradients it changes nothing

    for optimizer in replay.trainer.optimizers.values():
        optimizer.register_step_pre_hook(skip)
    return [replay.step().loss for _ in range(num_steps)]


def _perturbed_losses(examined: ExaminedTraining, num_steps: int) -> list[list[float]]:
    """The losses of several float32 replays where before each forward pass every weight gets a relative error drawn
    uniformly from [-u, u], with the unit roundoff u of the dtype that the arm computes in. If the arm's parameters have
    that dtype the errors stay; under autocast, which rounds copies of weights, they are removed after the step."""
    roundoff = FORMATS[examined.config.precision.dtype].unit_roundoff
    stay = examined.config.precision.parameters != "float32"
    curves: list[list[float]] = []
    for number in range(_NUM_REPLAYS):
        replay = examined.baseline()
        generator = torch.Generator(replay.device).manual_seed(_SEED + number)
        curves.append([_perturbed_loss(replay, roundoff, generator, stay=stay) for _ in range(num_steps)])
    return curves


def _perturbed_loss(replay: Replay, roundoff: float, generator: torch.Generator, *, stay: bool) -> float:
    weights: list[Tensor] = [weight for weight in replay.model.parameters() if weight.is_floating_point()]
    with torch.no_grad():
        drawn = (torch.rand(w.shape, generator=generator, device=w.device, dtype=torch.float32) for w in weights)
        errors = [weight * (even * 2 - 1) * roundoff for weight, even in zip(weights, drawn, strict=True)]
        torch._foreach_add_(weights, errors)
    loss = replay.step().loss
    if not stay:
        with torch.no_grad():
            torch._foreach_sub_(weights, errors)
    return loss
