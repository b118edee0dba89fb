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
from ampsweep.text import plural

_MIN_COST_PCT: Final = 1.0
_WINDOW_S: Final = 0.25  # processor time is counted in ticks of 10 ms
_STEPS_S: Final = 2.5
_OPERATORS_S: Final = 3.0
_LINES_S: Final = 1.0


def examine_speed(examined: ExaminedTraining) -> Iterator[SpeedFinding]:
    """Find what keeps a training from gaining time by its precision, and how much of the step it costs; raise
    NotExaminedError if both trainings do not fit into memory side by side, or other processes disturb them."""
    num_threads = torch.get_num_threads()
    try:
        yield from (found for found in _findings(_measured(examined)) if (found.cost_pct or 0.0) >= _MIN_COST_PCT)
    except torch.OutOfMemoryError as error:
        raise NotExaminedError("it does not fit into memory beside itself in float32") from error
    finally:
        torch.set_num_threads(num_threads)


def _findings(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Yield the causes before what they cause: what one has claimed is not found again."""
    for find in (data_wait, host_code, loops, synchronizations, unfused_optimizer):
        yield from find(measured)
    if measured.baseline:
        yield from autocast_is_off(measured)
        units = [*no_fast_units(measured)]
        yield from (*units, *casts(measured))
        if not units:  # else each product would be reported again
            yield from slower_operators(measured)


def _measured(examined: ExaminedTraining) -> MeasuredSteps:
    def within(seconds: float) -> float:
        return max(min(seconds, examined.seconds_left / 4), 0.0)

    facts, window, is_cpu = examined.facts, ProcessorWindow(), examined.device.type == "cpu"
    own = BareTraining(examined, examined.config)
    end_s = monotonic() + _WINDOW_S
    while own.first_loss is None or monotonic() < end_s:
        own.timed_ms()
    if is_cpu:  # threads that share an operator wait for the one that other load holds up
        torch.set_num_threads(min(torch.get_num_threads(), num_fitting_threads(window.use())))
    trainings, window = [own], ProcessorWindow()
    if not examined.is_baseline:
        trainings.append(BareTraining(examined, replace(examined.config, precision=PRECISION_MODES["fp32"])))
    times, *baseline_times = times_in_turn([training.timed_ms for training in trainings], seconds=within(_STEPS_S))
    step, *baseline = timed_in_turn(trainings, seconds=within(_OPERATORS_S))
    lines = sampled_lines(own, seconds=within(_LINES_S))
    facts |= {"speed/own_step_ms": median(times), "speed/num_operators": len(step)}
    if baseline:
        facts["speed/baseline_step_ms"] = median(baseline_times[0])
        facts["speed/speedup"] = median(map(truediv, baseline_times[0], times))
    use = window.use()
    if is_cpu and (load := foreign_load(use)) is not None:
        if num_fitting_threads(use) < torch.get_num_threads():
            raise NotExaminedError(f"{load} while it was timed")
        facts["speed/other_load"] = f"{load}: timed with {plural(torch.get_num_threads(), 'thread')}"
    return MeasuredSteps(examined, own, times=times, step=step, lines=lines, baseline=baseline[0] if baseline else ())
