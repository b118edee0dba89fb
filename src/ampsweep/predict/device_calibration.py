"""Calibrate a device: time the operators of small trainings on it, and the host around them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle, pairwise
from math import ceil, log, sqrt
from statistics import fmean, median
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.monitors.environment import device_name
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.memory_limit import memory_bytes
from ampsweep.observe.operator_work import OperatorWork, Phase, WorkLog
from ampsweep.observe.operators import OperatorMode, is_in_backward
from ampsweep.precision import Precision
from ampsweep.precision.precision import unsupported_reason, why_emulated
from ampsweep.predict.calibration_programs import Program, checks, programs
from ampsweep.speed.calibration import Calibration, MeasuredWork
from ampsweep.speed.devices import Device, device_of_driver
from ampsweep.speed.step_time import StepWork
from ampsweep.text import GIB, plural

_MODES: Final = ("fp32", "tf32", "amp_fp16", "amp_bf16", "pure_bf16")
_ON_CPU: Final = ("fp32", "amp_bf16", "pure_bf16")
_SECONDS: Final = 45.0
_LARGE_US: Final = 50.0  # works that take longer show the device's rates
_HEAD_START_MS: Final = 30.0  # of an accelerator's host, which takes a few for a small step
_SHORTEST: Final = 9  # trainings, which are mostly the host's work
_PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "update")


class _Training:
    """A program in a mode, and the times of its steps in microseconds."""

    def __init__(self, program: Program, mode: str, device: torch.device, *, is_check: bool = False) -> None:
        self.program, self.is_check = program, is_check
        self.device, self.precision = device, Precision(mode, device)
        self.tf32 = self.precision.config.tf32
        self._model = self.precision.convert(program.model)
        self._optimizer = self.precision.optimizer(program.optimizer, self._model.parameters())
        inputs = program.inputs.to(device)
        self._inputs = inputs.to(self.precision.parameters_dtype) if inputs.is_floating_point() else inputs
        self.works: list[OperatorWork] = []
        self.work_us: list[list[float]] = []  # by step, of each work
        self.step_us: list[float] = []
        self.phases_us: list[list[float]] = []  # by step, of the host in each phase

    def measure(self) -> None:
        """Take a step to warm up, one whose operators are timed, and one that is timed as a whole."""
        self._step()
        self._time_operators()
        step_us, phases_us = self._step()
        self.step_us.append(step_us)
        self.phases_us.append(phases_us)

    def _step(self) -> tuple[float, list[float]]:
        precision = self.precision
        with precision.flags():
            began = [perf_counter()]
            with precision.autocast():
                loss = self._model(self._inputs)
            began.append(perf_counter())
            precision.backward(loss)
            began.append(perf_counter())
            precision.step(self._optimizer)
            precision.update()
            self._optimizer.zero_grad()
            began.append(perf_counter())
            if self.device.type != "cpu":
                torch.accelerator.synchronize(self.device)
            step_us = 1e6 * (perf_counter() - began[0])
        return step_us, [1e6 * (end - begin) for begin, end in pairwise(began)]

    def _time_operators(self) -> None:
        logged, marks = WorkLog(), []

        def around(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            begin = _now(self.device)
            result = func(*args, **kwargs)
            end = _now(self.device)
            inputs = [*tensors_in((args, kwargs))]
            marks.append((begin, end, logged.add(func, args, kwargs, inputs, result, in_backward=is_in_backward())))
            return result

        if self.device.type != "cpu":
            _keep_busy(self.device)
        with OperatorMode(around):
            self._step()
        self.works = logged.works
        times: list[float] = []
        for begin, end, number in marks:
            us = 1e6 * (end - begin) if self.device.type == "cpu" else 1e3 * begin.elapsed_time(end)
            flops = [max(work.flops, 1) for work in self.works[len(times) : len(times) + number]]
            times += [us * own / sum(flops) for own in flops]
        self.work_us.append(times)


def calibrate(device: torch.device) -> Calibration:
    """Measure the device in at most a minute; nothing else should run on it."""
    began, trainings = perf_counter(), [*_trainings(device)]
    for training in cycle(trainings):  # in turn: a disturbance hits different trainings
        training.measure()
        if training.is_check and perf_counter() - began > _SECONDS:
            break
    measured = [training for training in trainings if training.works]
    calibration = _calibration(device, [training for training in measured if not training.is_check])
    errors = [_error(calibration, training) for training in measured if training.is_check]
    return replace(calibration, spread=sqrt(fmean(error**2 for error in errors)))


def _typical(us: Sequence[float]) -> float:
    """The lower quartile: what disturbs a measurement only adds to it."""
    return float(np.quantile(us, 0.25))


def _trainings(device: torch.device) -> Iterator[_Training]:
    """Those that calibrate and those that check, in each mode for which the device has kernels."""
    for mode in _ON_CPU if device.type == "cpu" else _MODES:
        config = PRECISION_MODES[mode]
        if not (unsupported_reason(config, device) or why_emulated(config, device)):
            yield from (_Training(program, mode, device) for program in programs())
            yield from (_Training(program, mode, device, is_check=True) for program in checks())


def _calibration(device: torch.device, trainings: Sequence[_Training]) -> Calibration:
    times: dict[tuple[OperatorWork, bool], list[float]] = defaultdict(list)
    for training in trainings:
        for of_step in training.work_us:
            for work, us in zip(training.works, of_step, strict=True):
                times[work, training.tf32].append(us)
    typical = {key: _typical(us) for key, us in times.items()}
    # What runs no kernel takes the time of observing it.
    idle_us = median(us for (work, _), us in typical.items() if work.kind == "none")
    measured = tuple(
        MeasuredWork(work, max(us - idle_us, us / 4), tf32) for (work, tf32), us in typical.items() if work.num_kernels
    )
    shortest = float(np.quantile([one.us for one in measured], 0.1))
    return Calibration(device_here(device), measured, _rates(measured), shortest, *_host_us(trainings, measured))


def _host_us(trainings: Sequence[_Training], measured: Sequence[MeasuredWork]) -> list[float]:
    """The host's time for an operator in forward, for one in backward, and for a step, by the shortest trainings: on a
    CPU without the operators themselves."""
    us = {(one.work, one.tf32): one.us for one in measured if trainings[0].device.type == "cpu"}
    found = []
    for training in sorted(trainings, key=lambda training: min(training.step_us))[:_SHORTEST]:
        left, calls = [], []
        for phase, host_us in zip(_PHASES, zip(*training.phases_us, strict=True), strict=True):
            works = [work for work in training.works if work.phase == phase]
            left.append(_typical(host_us) - sum(us.get((work, training.tf32), 0.0) for work in works))
            calls.append(sum(work.num_calls for work in works if work.kind != "none"))
        forward_us, backward_us = left[0] / calls[0], left[1] / calls[1]
        found.append((forward_us, backward_us, left[2] - calls[2] * backward_us))
    return [max(median(of), 0.0) for of in zip(*found, strict=True)]


def _error(calibration: Calibration, training: _Training) -> float:
    """The logarithm of the predicted over the measured time of a step."""
    predicted = StepWork(training.works).on(calibration.device, tf32=training.tf32, calibration=calibration)
    return log(1e3 * predicted.step_ms.expected / _typical(training.step_us))


def _rates(measured: Sequence[MeasuredWork]) -> dict[str, float]:
    rates: dict[str, list[float]] = defaultdict(list)
    for one in measured:
        if one.us < _LARGE_US:
            continue
        work, is_tf32 = one.work, one.tf32 and one.work.dtype == "float32"
        name = "moved" if not work.flops else "tf32" if is_tf32 else str(work.dtype)
        rates[name].append((work.flops / 1e6 if work.flops else work.num_bytes / 1e3) / one.us)
    return {name: float(np.quantile(found, 0.9)) for name, found in rates.items()}


def device_here(device: torch.device) -> Device:
    """The device of the table, or one that only its calibration describes."""
    name, threads = device_name(device), torch.get_num_threads()
    if (known := device_of_driver(name)) is not None:
        return known
    name = f"{name}, {plural(threads, 'thread')}" if device.type == "cpu" else name
    memory_gib = (memory_bytes(device, None) or 0) / GIB
    unknown = (0.0, 0.0, 0.0, 1.0, 0.0, None, 0.0, None, None, "measured")
    return Device(name, (), device.type, (0, 0), threads, 0.0, memory_gib, *unknown)


def _now(device: torch.device) -> Any:
    if device.type == "cpu":
        return perf_counter()
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


def _keep_busy(device: torch.device) -> None:
    """Give the device work for longer than the host takes for a step, so that it never waits between operators."""
    factor = torch.empty(4096, 4096, device=device)
    for _ in range(ceil(_HEAD_START_MS / _product_ms(device))):
        factor @ factor


@cache
def _product_ms(device: torch.device) -> float:
    factor, marks = torch.empty(4096, 4096, device=device), []
    for _ in range(3):
        factor @ factor
        marks.append(_now(device))
    torch.accelerator.synchronize(device)
    return float(marks[1].elapsed_time(marks[2]))
