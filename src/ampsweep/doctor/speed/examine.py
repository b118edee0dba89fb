"""The examination of a training that gains little time from its precision."""

from collections.abc import Iterator
from dataclasses import replace
from operator import truediv
from statistics import median
from time import monotonic
from typing import Final

import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.speed.matrix_products import autocast_is_off, no_fast_units
from ampsweep.doctor.speed.measured_steps import MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.operators import casts, loops, slower_operators, unfused_optimizer
from ampsweep.doctor.speed.sampled_lines import sampled_lines
from ampsweep.doctor.speed.step_times import BareTraining, times_in_turn
from ampsweep.doctor.speed.timed_calls import timed_in_turn
from ampsweep.doctor.speed.waiting import data_wait, host_code, synchronizations
from ampsweep.monitors.contamination import foreign_load, num_fitting_threads
from ampsweep.monitors.processors import ProcessorWindow
from ampsweep.monitors.step_clock import Moments
from ampsweep.text import plural

_MIN_COST_PCT: Final = 1.0
_WINDOW_S: Final = 0.25  # processor time is counted in ticks of 10 ms
_STEPS_S: Final = 2.5
_OPERATORS_S: Final = 1.5
_LINES_S: Final = 1.0


def examine_speed(examined: ExaminedTraining) -> Iterator[SpeedFinding]:
    """Find what keeps a training from gaining time by its precision, and how much of the step it costs; raise
    NotExaminedError if a step raises an error, both trainings do not fit into memory side by side, or other processes
    disturb them."""
    moments, window, num_threads = Moments(examined.device), ProcessorWindow(), torch.get_num_threads()
    own = BareTraining(examined, examined.config)
    try:
        end_s = monotonic() + _WINDOW_S
        while own.first_loss is None or monotonic() < end_s:
            own.step()
            moments.wait()
    except Exception as error:
        raise NotExaminedError(f"its first step ends with an error ({type(error).__name__})") from error
    try:
        if examined.device.type == "cpu":  # threads that share an operator wait for the one that other load holds up
            torch.set_num_threads(min(num_threads, num_fitting_threads(window.use())))
        measured = _measured(examined, own, moments)
        yield from (found for found in _findings(measured) if (found.cost_pct or 0.0) >= _MIN_COST_PCT)
    except torch.OutOfMemoryError as error:
        raise NotExaminedError("it does not fit into memory beside itself in float32") from error
    finally:
        torch.set_num_threads(num_threads)


def _findings(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Yield the causes before what they cause: what one has claimed is not found again."""
    facts = measured.examined.facts
    facts["speed/own_step_ms"] = median(measured.times)
    facts["speed/num_operators"] = len(measured.step)
    for find in (data_wait, host_code, loops, synchronizations, unfused_optimizer):
        yield from find(measured)
    if measured.baseline:
        yield from autocast_is_off(measured)
        units = [*no_fast_units(measured)]
        yield from (*units, *casts(measured))
        if not units:  # else each product would be reported again
            yield from slower_operators(measured)


def _measured(examined: ExaminedTraining, own: BareTraining, moments: Moments) -> MeasuredSteps:
    trainings, window, facts = [own], ProcessorWindow(), examined.facts
    if not examined.is_baseline:
        trainings.append(BareTraining(examined, replace(examined.config, precision=PRECISION_MODES["fp32"])))
    times = times_in_turn([training.step for training in trainings], moments, seconds=_within(examined, _STEPS_S))
    steps = timed_in_turn(trainings, moments, seconds=_within(examined, _OPERATORS_S))
    lines = sampled_lines(own, seconds=_within(examined, _LINES_S))
    measured = MeasuredSteps(examined, own, moments, times=times[0], step=steps[0], lines=lines)
    if len(trainings) > 1:
        facts["speed/baseline_step_ms"] = median(times[1])
        facts["speed/speedup"] = speedup = median(map(truediv, times[1], times[0]))
        measured = replace(measured, baseline=steps[1], speedup=speedup)
    use = window.use()
    if (load := foreign_load(use)) is not None and examined.device.type == "cpu":
        if num_fitting_threads(use) < torch.get_num_threads():
            raise NotExaminedError(f"{load} while it was timed")
        facts["speed/other_load"] = f"{load}: timed with {plural(torch.get_num_threads(), 'thread')}"
    return measured


def _within(examined: ExaminedTraining, seconds: float) -> float:
    return max(min(seconds, examined.seconds_left / 4), 0.0)
