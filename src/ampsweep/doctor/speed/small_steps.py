"""Steps with too little work: compared to the cost of launching operators, or to what the device could do at once."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Final

import torch

from ampsweep.analysis.step_limits import MAX_LAG_SHARE, MIN_LAUNCH_SHARE, MIN_US_PER_OPERATOR_CPU
from ampsweep.doctor.hot_spots import HotSpot
from ampsweep.doctor.speed.measured_steps import MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.step_times import Ratio, Repeated, StepTimes, doubled, times_in_turn
from ampsweep.text import percent

_MIN_LAUNCH_PCT: Final = 15.0  # smallest share of a step that is reported
_MIN_GAIN_PCT: Final = 25.0  # if doubling the batch saves this share of a sample's time, the device is not filled
_SECONDS: Final = 1.5
_MIN_ROUNDS: Final = 3
_CHAIN: Final = 40
_REPEATED: Final = 7


class LaunchBound(SpeedFinding):
    template = "Operators{inside}{at} are too small compared to the cost of launching them"
    seen = ("{num_operators} operators take {us_per_operator} us each; launching takes about {launch_ms} of {step_ms}",)
    remedy = "do the work of many calls in a single call, on larger tensors"
    remedy_by_overrides = "give a step more work"
    num_operators: int
    us_per_operator: float
    launch_ms: float
    operators_here_pct: float | None  # of all operators, those of the module

    @property
    def evidence(self) -> list[str]:
        here = "{operators_here_pct} of them are called{inside}"
        return [*super().evidence, *([self.filled(here)] if self.modules else [])]


class SmallBatch(SpeedFinding):
    template = "A batch of {batch_size} does not fill the device"
    remedy = "train in larger batches"
    double_ms_per_sample_ratio: float
    batch_size: int

    @property
    def evidence(self) -> list[str]:
        double = percent(100 * self.double_ms_per_sample_ratio)
        return [f"a sample takes {double} of its time in batches of twice the size"]


def too_little_work(measured: MeasuredSteps) -> Sequence[SpeedFinding]:
    return [*_launching(measured)] or [*_small_batch(measured)]


def _launching(measured: MeasuredSteps) -> Iterator[LaunchBound]:
    num_operators, step_ms = len(measured.step.calls), measured.step_ms
    us_each = 1e3 * step_ms / max(num_operators, 1)
    if measured.moments.has_queue:
        launch_ms, is_limit = _launch_ms(measured)
        cost_ms = max(step_ms - measured.step.operators_ms, 0.0)
    else:
        cost_ms = launch_ms = num_operators * measured.us_to_launch / 1e3
        is_limit = us_each < MIN_US_PER_OPERATOR_CPU
    measured.examined.facts["speed/num_operators"] = num_operators
    measured.examined.facts["speed/us_per_operator"] = us_each
    if not is_limit or measured.share_pct(cost_ms) < _MIN_LAUNCH_PCT:
        return
    calls = measured.step.of_phases("forward", "backward")
    module = next(iter(HotSpot.of((call, 1.0) for call in calls).modules), None)
    here = HotSpot.of((call, 1.0) for call in calls if call.module == module)
    is_here = module is not None and here.cost >= len(calls) / 2
    yield measured.finding(
        LaunchBound,
        None,
        [] if is_here else [f"data.batch_size={4 * measured.examined.data.batch_size}"],
        cost_pct=measured.share_pct(cost_ms),
        modules=here.modules if is_here else [],
        place=here.place if is_here else None,
        num_operators=num_operators,
        us_per_operator=us_each,
        launch_ms=launch_ms,
        operators_here_pct=100 * here.cost / len(calls) if is_here else None,
    )


def _small_batch(measured: MeasuredSteps) -> Iterator[SmallBatch]:
    training, examined = measured.training, measured.examined
    if examined.seconds_left < 12e-3 * median(measured.times):
        return
    try:
        larger = Repeated(examined.data, [*map(doubled, training.batches)])
        seconds = min(_SECONDS, examined.seconds_left / 4)
        steps = (training.step, partial(training.step, larger))
        own, double = times_in_turn(steps, measured.moments, seconds=seconds)
    except (RuntimeError, ValueError, TypeError, IndexError):  # the model or the loss takes no other batch size
        return
    gain = gain_pct(own, double)
    examined.facts["speed/double_batch_gain_pct"] = gain
    if gain >= _MIN_GAIN_PCT and len(own) >= _MIN_ROUNDS:
        size, ratio = examined.data.batch_size, median(double) / median(own) / 2
        overrides = [f"data.batch_size={2 * size}"]
        yield measured.finding(
            SmallBatch, None, overrides, cost_pct=gain, double_ms_per_sample_ratio=ratio, batch_size=size
        )


def gain_pct(own: StepTimes, double: StepTimes) -> float:
    """The share of a sample's time, in percent, that doubling the batch saves in three blocks of four."""
    return max(100 * (1 - Ratio.of(double, own).high / 2), 0.0)


def us_to_launch() -> float:
    """Time in us that an operator on a tiny tensor takes on this host, forward or backward, autograd included."""
    start = torch.ones(1, requires_grad=True)
    times_s = []
    for _ in range(1 + _REPEATED):
        began_s = perf_counter()
        value = start
        for _ in range(_CHAIN):
            value = value * value
        value.backward()  # type: ignore[no-untyped-call]
        times_s.append(perf_counter() - began_s)
    return 1e6 * min(times_s) / (4 * _CHAIN)  # each backward multiplies twice and adds


def _launch_ms(measured: MeasuredSteps) -> tuple[float, bool]:
    """The host's time in ms to launch a step on an idle accelerator, and if the step is launch-bound."""
    launches, lags = list[float](), list[float]()
    for _ in range(_REPEATED):
        measured.moments.wait()
        began_s = perf_counter()
        measured.training.step()
        launched_s = perf_counter()
        measured.moments.wait()
        launches.append(1e3 * (launched_s - began_s))
        lags.append(1e3 * (perf_counter() - launched_s))
    launch_ms, step_ms = median(launches), median(measured.times)
    return launch_ms, launch_ms >= MIN_LAUNCH_SHARE * step_ms and median(lags) < MAX_LAG_SHARE * step_ms
