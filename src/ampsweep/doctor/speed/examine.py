"""The examination of a training that gains little time from its precision."""

from collections.abc import Iterator
from statistics import median
from typing import Final

import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.speed.matrix_products import float32_products, no_fast_units, product_rates
from ampsweep.doctor.speed.measured_steps import Baseline, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.operators import casts, fixed_operators, optimizer, slower_altogether, slower_operators
from ampsweep.doctor.speed.small_steps import too_little_work, us_to_launch
from ampsweep.doctor.speed.step_times import BareTraining, Ratio, times_in_turn
from ampsweep.doctor.speed.timed_calls import timed_in_turn
from ampsweep.doctor.speed.waiting import data_wait, host_code, synchronizations
from ampsweep.monitors.step_clock import Moments

_STEPS_S: Final = 2.5
_OPERATORS_S: Final = 1.5
_RATES_S: Final = 1.0


def examine_speed(examined: ExaminedTraining) -> Iterator[SpeedFinding]:
    """Find what keeps a training from gaining time by its precision, and how much of the step it costs; raise
    NotExaminedError if a step raises an error, or both trainings do not fit into memory side by side."""
    moments = Moments(examined.device)
    own = BareTraining(examined, examined.config.precision)
    try:
        own.step()
        moments.wait()
    except Exception as error:
        raise NotExaminedError(f"its first step ends with an error ({type(error).__name__})") from error
    try:
        measured = _measured(examined, own, moments)
    except torch.OutOfMemoryError as error:
        raise NotExaminedError("it does not fit into memory beside itself in float32") from error
    facts, baseline = examined.facts, measured.baseline
    facts["speed/own_step_ms"] = median(measured.times)
    facts["speed/is_compiled"] = False
    facts["speed/gflops_per_s"] = {dtype: rate / 1e9 for dtype, rate in measured.product_rates.items()}
    if baseline is not None:
        facts["speed/baseline_step_ms"] = median(baseline.times)
        facts["speed/speedup"] = baseline.speedup.median
    is_explained = False
    for finding in _causes(measured):
        is_explained = True
        yield finding
    if baseline is not None and not is_explained:
        yield from (*fixed_operators(measured, baseline), *slower_altogether(measured, baseline))


def _causes(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    host, baseline = [*host_code(measured)], measured.baseline
    units = [] if baseline is None else [*no_fast_units(measured, baseline)]
    yield from (*host, *units, *synchronizations(measured), *data_wait(measured))
    # The host's time does not depend on the batch size, and would be reported twice.
    too_little = [] if host else too_little_work(measured)
    yield from too_little
    if baseline is None:
        return
    yield from casts(measured)
    if not too_little:  # a larger batch helps the optimizer, too
        yield from optimizer(measured)
    if not units:  # else each product would be reported again
        yield from (*float32_products(measured), *slower_operators(measured, baseline))


def _measured(examined: ExaminedTraining, own: BareTraining, moments: Moments) -> MeasuredSteps:
    former = None if examined.is_baseline else BareTraining(examined, PRECISION_MODES["fp32"])
    trainings = [own] if former is None else [own, former]
    times = times_in_turn([training.step for training in trainings], moments, seconds=_within(examined, _STEPS_S))
    steps = timed_in_turn(trainings, moments, seconds=_within(examined, _OPERATORS_S))
    rates = product_rates(examined.device, moments, seconds=_within(examined, _RATES_S))
    baseline = None
    if former is not None:
        baseline = Baseline(times=times[1], step=steps[1], speedup=Ratio.of(times[1], times[0]))
    return MeasuredSteps(
        examined=examined,
        training=own,
        moments=moments,
        product_rates=rates,
        times=times[0],
        step=steps[0],
        us_to_launch=us_to_launch(),
        baseline=baseline,
    )


def _within(examined: ExaminedTraining, seconds: float) -> float:
    return max(min(seconds, examined.seconds_left / 4), 0.0)
