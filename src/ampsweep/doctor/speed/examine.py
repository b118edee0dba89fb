"""The examination of a training that gains little time from its precision."""

from typing import Final

import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.doctor.speed.bare_training import BareTraining
from ampsweep.doctor.speed.filling import too_little_work, us_to_launch
from ampsweep.doctor.speed.measured_steps import Baseline, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.operators import casts, fixed_operators, optimizer, slower_altogether, slower_operators
from ampsweep.doctor.speed.products import float32_products, no_fast_units, product_rates
from ampsweep.doctor.speed.step_times import Ratio, times_in_turn
from ampsweep.doctor.speed.timed_calls import timed_in_turn
from ampsweep.doctor.speed.waiting import data_wait, host_code, synchronizations
from ampsweep.monitors.step_clock import Moments

_STEPS_S: Final = 2.5
_OPERATORS_S: Final = 1.5
_RATES_S: Final = 1.0


def examine_speed(patient: Patient) -> list[SpeedFinding]:
    """Find what keeps a training from gaining time by its precision, each with what it costs of the step.

    Raises:
        NotExaminedError: a step in its own precision raises an error, or the two do not fit into memory side by side.
    """
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
    findings: list[SpeedFinding] = [*data_wait(measured), *host, *synchronizations(measured)]
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
        findings += [*float32_products(measured), *slower_operators(measured, baseline)]
    if not findings:
        findings = [*fixed_operators(measured, baseline), *slower_altogether(measured, baseline)]
    return findings


def _measured(patient: Patient, own: BareTraining, moments: Moments) -> MeasuredSteps:
    """Take the steps of both trainings in turn, then those whose operators are timed."""
    former = None if patient.is_baseline else BareTraining(patient, PRECISION_MODES["fp32"])
    trainings = [own] if former is None else [own, former]
    times = times_in_turn([one.step for one in trainings], moments, seconds=_within(patient, _STEPS_S))
    steps = timed_in_turn(trainings, moments, seconds=_within(patient, _OPERATORS_S))
    rates = product_rates(patient.device, moments, seconds=_within(patient, _RATES_S))
    baseline = None
    if former is not None:
        baseline = Baseline(times=times[1], step=steps[1], speedup=Ratio.of(times[1], times[0]))
    return MeasuredSteps(
        patient=patient,
        training=own,
        moments=moments,
        product_rates=rates,
        times=times[0],
        step=steps[0],
        us_to_launch=us_to_launch(),
        baseline=baseline,
    )


def _within(patient: Patient, seconds: float) -> float:
    """So many seconds, or a quarter of the time left."""
    return max(min(seconds, patient.seconds_left / 4), 0.0)


def _note_facts(measured: MeasuredSteps) -> None:
    baseline = measured.baseline
    measured.patient.facts |= {
        "speed/own_step_ms": measured.times.median_ms,
        "speed/is_compiled": False,
        "speed/gflops_per_s": {dtype: rate / 1e9 for dtype, rate in measured.product_rates.items()},
    }
    if baseline is not None:
        measured.patient.facts |= {
            "speed/baseline_step_ms": baseline.times.median_ms,
            "speed/speedup": baseline.speedup.median,
        }
