"""The measurements of a training's steps, from which all speed findings follow."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np

from ampsweep.config.schema import Config
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, DoctorFinding
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.hot_spots import HotSpot
from ampsweep.doctor.replay import OutOfTimeError
from ampsweep.doctor.speed.sampled_lines import SampledLine
from ampsweep.doctor.speed.step_times import BareTraining, StepTimes, TimedAgain, times_in_turn
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, total_ms
from ampsweep.text import milliseconds, ratio

MIN_COST_PCT: Final = 10.0  # least reported share of a step
_MIN_GAIN_PCT: Final = 5.0  # least gain in three blocks of four of a change that is advised
_MAX_LOSS_CHANGE: Final = 0.05  # relative, of the first step: a change that changes more is no question of speed
_MAX_LAUNCH_MS: Final = 0.01  # more is other load, or a wait for the device
_TRIAL_S: Final = 1.5
_MIN_ROUNDS: Final = 3


class SpeedFinding(DoctorFinding):
    severity = "warning"
    complaint = "speed"
    own_ms: float  # of what it names, in a step
    step_ms: float  # with its wait for data


class OperatorFinding(SpeedFinding):
    """Some calls take much of a step."""

    num_calls: int
    expected_ms: float | None  # what their work takes by the speed model; None on a device that it does not know

    @property
    def evidence(self) -> list[str]:
        if not self.expected_ms:
            return super().evidence
        times = ratio(self.own_ms / self.expected_ms)
        return [*super().evidence, f"{milliseconds(self.own_ms)} is {times} what such work should take on this device"]


@dataclass
class MeasuredSteps:
    """Each finding claims its share of the step and its calls, and later ones get what is left: causes come first."""

    examined: ExaminedTraining
    training: BareTraining
    _: KW_ONLY
    times: StepTimes
    step: TimedStep
    lines: Sequence[SampledLine]
    baseline: TimedStep = ()  # in float32; empty if the training itself computes in it
    wait_ms: float = 0.0  # for the data of each step
    host_ms: float = 0.0  # of the user's code that is no operator
    _claimed_pct: float = 0.0
    _claimed: set[TimedCall] = field(default_factory=set)

    @property
    def operators_ms(self) -> float:
        return total_ms(self.step)

    @property
    def idle_ms(self) -> float:
        """The time in which no operator runs."""
        return self.own_ms - self.operators_ms

    @property
    def own_ms(self) -> float:
        """A step's time without waiting for data: other load makes a step longer, never shorter."""
        return max(min(self.times), self.operators_ms)

    @property
    def step_ms(self) -> float:
        return self.own_ms + self.wait_ms

    @property
    def launch_ms(self) -> float:
        """The host's time to launch an operator, of what is left of the step beside operators and the user's code."""
        return min(max(self.idle_ms - self.host_ms, 0.0) / max(len(self.step), 1), _MAX_LAUNCH_MS)

    def share_pct(self, ms: float) -> float:
        """The share of a step, of what no finding has claimed."""
        return max(min(100 * ms / self.step_ms, 100 - self._claimed_pct), 0.0)

    def calls(self, *phases: str) -> list[TimedCall]:
        """The calls of the step in some phases, or all, that no finding has claimed."""
        return [call for call in self.step if call not in self._claimed and call.phase in (phases or call.phase)]

    def finding(
        self,
        kind: type[SpeedFinding],
        spot: HotSpot[TimedCall] | None,
        change: Change | None = None,
        *,
        cost_ms: float,
        **facts: Any,
    ) -> SpeedFinding:
        """A finding that costs so many ms of a step, at a spot, if known, or where `facts` say."""
        cost_pct = self.share_pct(cost_ms)
        self._claimed_pct += cost_pct
        known: dict[str, Any] = {"change": change or Change(), "cost_pct": cost_pct}
        known |= {"own_ms": cost_ms, "step_ms": self.step_ms}
        if spot is not None:
            self._claimed.update(spot.calls)
            known |= {"modules": spot.modules, "operator": spot.operator, "place": spot.place}
            if issubclass(kind, OperatorFinding):
                expected_ms = sum(call.expected_ms or 0.0 for call in spot.calls) or None
                known |= {"own_ms": total_ms(spot.calls), "num_calls": len(spot.calls), "expected_ms": expected_ms}
        return kind(**known | facts)

    def tried(self, config: Config, edit: CodeEdit | None = None) -> TimedAgain | None:
        """Time the training with another config or an edit against the own; None if it fails, its first loss is
        another, or it gains less in a quarter of the blocks."""
        least_s = 4e-3 * _MIN_ROUNDS * median(self.times)
        if self.examined.seconds_left < 2 * least_s:
            return None
        try:
            other = BareTraining(self.examined, config, edit)
            other.timed_ms()
            own_loss, loss = (training.first_loss or math.nan for training in (self.training, other))
            if math.isfinite(own_loss) and not math.isclose(loss, own_loss, rel_tol=_MAX_LOSS_CHANGE):
                return None
            blocks = (self.training.timed_ms, other.timed_ms)
            own, changed = times_in_turn(blocks, seconds=max(_TRIAL_S, least_s))
        except (Exception, OutOfTimeError):  # noqa: BLE001  a change may not suit the training in any way
            return None
        if len(own) < _MIN_ROUNDS or 100 * (1 - np.quantile(np.divide(changed, own), 0.75)) < _MIN_GAIN_PCT:
            return None
        return TimedAgain(mends=True, former_step_ms=median(own), step_ms=median(changed))
