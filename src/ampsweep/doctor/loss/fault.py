"""The fault of a training's losses: how it shows, and the judge who tells whether some steps have it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from scipy.special import stdtrit

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.diagnosis import fact_text
from ampsweep.doctor.replay import TakenStep

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

MOST_SKIPS: Final = int(math.log2(PrecisionConfig.init_scale)) + 1
"""Steps that torch's first scale needs to come below one: a scaler that skips as many does not find its scale."""
_MOST_SPIKES: Final = 4
"""Steps that a scaler may skip after the first that it has applied. Its growth_interval expects one in 2000."""
_LAST_PART: Final = 3
"""The last of so many equal parts of the steps is where losses are compared."""
_CONFIDENCE: Final = 0.999


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
        first_applied = next((n for n, one in enumerate(steps, start=1) if not one.is_skipped), len(steps) + 1)
        spikes = [number for number in skipped if number > first_applied]
        if hopeless:
            return self.signs("skipped_steps", hopeless[0], steps)
        if len(skipped) >= MOST_SKIPS or len(spikes) > _MOST_SPIKES:
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
