"""The measurements of a training's steps, from which all speed findings follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

from torch import Tensor

from ampsweep.doctor.diagnosis import Change, DoctorFinding
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.hot_spots import HotSpot
from ampsweep.doctor.speed.step_times import BareTraining, Ratio, StepTimes, timed_ms
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, total_ms
from ampsweep.monitors.step_clock import Moments
from ampsweep.nested_tensors import map_tensors
from ampsweep.observe.calls import observe
from ampsweep.text import milliseconds, ratio

MIN_COST_PCT: Final = 10.0  # least reported share of a step
_REPEATED: Final = 5
_TRIALS_S: Final = 2.0


class SpeedFinding(DoctorFinding):
    severity = "warning"
    complaint = "speed"
    step_ms: float


class OperatorFinding(SpeedFinding):
    """Some calls take much of a step."""

    own_ms: float
    num_calls: int
    expected_ms: float | None  # what their work takes by the speed model; None on a device that it does not know

    @property
    def evidence(self) -> list[str]:
        if not self.expected_ms:
            return super().evidence
        times = ratio(self.own_ms / self.expected_ms)
        return [*super().evidence, f"{milliseconds(self.own_ms)} is {times} what such work should take on this device"]


Kind = TypeVar("Kind", bound=SpeedFinding)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    times: StepTimes
    step: TimedStep
    speedup: Ratio  # time in float32 over the own time


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    examined: ExaminedTraining
    training: BareTraining
    moments: Moments
    product_rates: Mapping[str, float]  # operations per second of matrix products, by the dtype of their operands
    times: StepTimes
    step: TimedStep
    us_to_launch: float  # the host's time for an operator on a tiny tensor
    baseline: Baseline | None  # None if the training computes in float32 itself

    @property
    def step_ms(self) -> float:
        """The sum of operators, the host's code and launching: on a busy machine no step as a whole is undisturbed."""
        launching_ms = len(self.step.calls) * self.us_to_launch / 1e3
        return self.step.operators_ms + self.step.idle_ms + launching_ms

    def share_pct(self, ms: float) -> float:
        return min(100 * ms / self.step_ms, 100.0)

    def finding(
        self, kind: type[Kind], spot: HotSpot[TimedCall] | None, overrides: Sequence[str] = (), **facts: Any
    ) -> Kind:
        """A finding at a spot, which it costs; with none, `facts` have the cost and, if known, where."""
        known: dict[str, Any] = {"step_ms": self.step_ms, "change": Change(overrides=[*overrides])}
        if spot is not None:
            known |= {"modules": spot.modules, "operator": spot.operator, "place": spot.place}
            known |= {"cost_pct": self.share_pct(spot.cost)}
        if spot is not None and issubclass(kind, OperatorFinding):
            expected = [call.expected_ms for call in spot.calls if call.expected_ms is not None]
            known |= {"own_ms": total_ms(spot.calls), "num_calls": len(spot.calls)}
            known["expected_ms"] = sum(expected) or None
        return kind(**(known | facts))

    def gains_ms(self, calls: Sequence[TimedCall], change: Callable[[Tensor], Tensor]) -> list[tuple[TimedCall, float]]:
        """Call operators of a step again with changed tensors; return the ms that each saves, as time permits."""
        by_index = {call.index: call for call in calls}
        end_s = monotonic() + max(min(_TRIALS_S, self.examined.seconds_left), 0.0)
        found: list[tuple[TimedCall, float]] = []

        def around(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            assert observer.begun is not None
            call = by_index.get(observer.begun.index)
            if call is not None and monotonic() <= end_s:
                other_args, other_kwargs = map_tensors((args, kwargs), change)
                own, other = (lambda: operator(*args, **kwargs)), (lambda: operator(*other_args, **other_kwargs))
                times = [(timed_ms(own, self.moments), timed_ms(other, self.moments)) for _ in range(_REPEATED)]
                own_ms, other_ms = map(min, zip(*times, strict=True))
                found.append((call, call.ms * max(1 - other_ms / own_ms, 0.0) if own_ms else 0.0))
            return operator(*args, **kwargs)

        if calls:
            with observe(self.training.model, lambda *_: None, around=around, places=False) as observer:
                self.training.step()
        return found
