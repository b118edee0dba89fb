"""The examination of a training that gains little time from its precision."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.doctor.speed.bare_training import BareTraining
from ampsweep.doctor.speed.casts import casts
from ampsweep.doctor.speed.device_rates import device_rates, speedup_bound
from ampsweep.doctor.speed.filling import too_little_work, us_to_launch
from ampsweep.doctor.speed.graph_breaks import graph_breaks
from ampsweep.doctor.speed.measured_steps import Baseline, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.operators import fixed_operators, optimizer, slower_altogether, slower_operators
from ampsweep.doctor.speed.products import float32_products, no_fast_units, unaligned_sizes
from ampsweep.doctor.speed.step_times import Ratio, times_in_turn
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, timed_in_turn, total_ms
from ampsweep.doctor.speed.waiting import data_wait, host_code, synchronizations
from ampsweep.monitors.step_clock import Moments
from ampsweep.numeric_formats import dtype_name

_STEPS_S: Final = 2.5
_OPERATORS_S: Final = 1.5
_RATES_S: Final = 1.0
_NUM_DEAREST: Final = 10
_MIN_THREADS_GAIN: Final = 1.2
_EDGE: Final = 192
_PRODUCTS: Final = 8
_THREADS_S: Final = 0.4


def examine_speed(patient: Patient) -> list[SpeedFinding]:
    """Find what keeps a training from gaining time by its precision, each with what it costs of the step.

    Raises:
        NotExaminedError: a step in its own precision raises an error, or the two do not fit into memory side by side.
    """
    with _undisturbed_threads(patient):
        return _examine(patient)


def _examine(patient: Patient) -> list[SpeedFinding]:
    moments = Moments(patient.device)
    own = BareTraining(patient, patient.config.precision)
    try:
        own.step()
        moments.wait()
    except Exception as error:
        raise NotExaminedError(f"its first step ends with an error ({type(error).__name__})") from error
    try:
        measured = _measured(patient, own, moments)
    except torch.OutOfMemoryError as error:
        raise NotExaminedError("it does not fit into memory beside itself in float32") from error
    _note_facts(measured)
    host = host_code(measured)
    findings: list[SpeedFinding] = [
        *data_wait(measured),
        *host,
        *synchronizations(measured),
        *graph_breaks(measured),
    ]
    # The host's time is the same for a batch of any size, and would be reported twice.
    too_little = [] if host else too_little_work(measured)
    findings += too_little
    if (baseline := measured.baseline) is None:
        return findings
    units = no_fast_units(measured, baseline)
    findings += [*units, *casts(measured)]
    if not too_little:  # a larger batch is what the optimizer needs, too
        findings += optimizer(measured)
    if not units:  # else all products would be reported one by one
        findings += [*float32_products(measured), *slower_operators(measured, baseline), *unaligned_sizes(measured)]
    if not findings:
        findings += fixed_operators(measured, baseline)
    return [*findings, *slower_altogether(measured, baseline, findings)]


@contextmanager
def _undisturbed_threads(patient: Patient) -> Iterator[None]:
    """Compute in one thread where several are hardly faster at the moment.

    On a busy machine the threads of an operator wait for the one that waits for a core, and times say nothing about
    operators.
    """
    former = torch.get_num_threads()
    if patient.device.type == "cpu" and former > 1:
        products = [partial(_multiply, num_threads) for num_threads in (1, former)]
        single, several = times_in_turn(products, Moments(patient.device), seconds=_THREADS_S)
        torch.set_num_threads(former if Ratio.of(single, several).median >= _MIN_THREADS_GAIN else 1)
    patient.facts["speed/num_threads"] = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(former)


def _multiply(num_threads: int) -> None:
    """Take some short products in so many threads."""
    torch.set_num_threads(num_threads)
    one = torch.ones(_EDGE, _EDGE)
    for _ in range(_PRODUCTS):
        one @ one


def _measured(patient: Patient, own: BareTraining, moments: Moments) -> MeasuredSteps:
    """Take the steps of both trainings in turn, then those whose operators are timed."""
    former = None if patient.is_baseline else BareTraining(patient, PRECISION_MODES["fp32"])
    trainings = [own] if former is None else [own, former]
    times = times_in_turn([one.step for one in trainings], moments, seconds=_within(patient, _STEPS_S))
    steps = timed_in_turn(trainings, moments, seconds=_within(patient, _OPERATORS_S))
    rates = device_rates(patient.device, moments, seconds=_within(patient, _RATES_S))
    baseline = None
    if former is not None:
        bound = speedup_bound(steps[1], steps[0], times[1].least_ms, patient.config.precision, rates)
        baseline = Baseline(times=times[1], step=steps[1], speedup=Ratio.of(times[1], times[0]), bound=bound)
    return MeasuredSteps(
        patient=patient,
        training=own,
        moments=moments,
        rates=rates,
        times=times[0],
        step=steps[0],
        us_to_launch=us_to_launch(),
        baseline=baseline,
    )


def _within(patient: Patient, seconds: float) -> float:
    """So many seconds, or a quarter of the time left."""
    return max(min(seconds, patient.seconds_left / 4), 0.0)


def _note_facts(measured: MeasuredSteps) -> None:
    baseline, rates = measured.baseline, measured.rates
    measured.patient.facts |= {
        "speed/own_step_ms": measured.times.median_ms,
        "speed/own_step_spread_pct": measured.times.spread_pct,
        "speed/is_compiled": False,
        "speed/operators": dearest_operators(measured.step, measured.step_ms),
        "speed/gflops_per_s": {dtype: rate / 1e9 for dtype, rate in rates.flops_per_s.items()},
        "speed/gbytes_per_s": rates.bytes_per_s / 1e9,
    }
    if baseline is not None:
        measured.patient.facts |= {
            "speed/baseline_step_ms": baseline.times.median_ms,
            "speed/baseline_step_spread_pct": baseline.times.spread_pct,
            "speed/speedup": baseline.speedup.median,
            "speed/speedup_low": baseline.speedup.low,
            "speed/speedup_high": baseline.speedup.high,
            "speed/bound": baseline.bound,
        }


def dearest_operators(step: TimedStep, step_ms: float) -> list[dict[str, Any]]:
    """The operators that take most of a step, by operator, module and dtype of the result."""
    found: dict[tuple[str, str | None, str], list[TimedCall]] = defaultdict(list)
    for one in step.calls:
        found[one.operator, one.module, dtype_name(one.outputs[0]) if one.outputs else ""].append(one)
    return [
        {
            "operator": operator,
            "module": module,
            "dtype": dtype,
            "calls": len(calls),
            "ms": total_ms(calls),
            "step_pct": 100 * total_ms(calls) / step_ms,
        }
        for (operator, module, dtype), calls in sorted(found.items(), key=lambda item: -total_ms(item[1]))
    ][:_NUM_DEAREST]
