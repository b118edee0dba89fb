"""Calibrate a device: time the operators of small trainings on it, and the host around them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from math import ceil, log, sqrt
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any, Final

import msgspec
import torch
from torch.optim import AdamW

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.data.base import as_model_input
from ampsweep.monitors.step_clock import Moments
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.operator_work import OperatorWork, WorkLog
from ampsweep.observe.operators import OperatorMode, is_in_backward
from ampsweep.precision import Precision
from ampsweep.precision.precision import unsupported_reason, why_emulated
from ampsweep.predict.calibration_programs import Program, checks, programs
from ampsweep.predict.calibrations import calibration_file, device_here
from ampsweep.records.files import write_atomically
from ampsweep.report.document import Document, Prose, Section
from ampsweep.speed.calibration import Calibration, MeasuredWork
from ampsweep.speed.predicted_range import in_range
from ampsweep.speed.step_time import StepWork
from ampsweep.text import number
from ampsweep.training.components.device import taken_device

_MODES: Final = ("fp32", "tf32", "amp_fp16", "amp_bf16", "pure_bf16")
_ON_CPU: Final = ("fp32", "amp_bf16", "pure_bf16")
_SECONDS: Final = 45.0
_SHORTEST: Final = 15  # trainings, which are mostly the host's work


class _Training:
    """A program in a mode, and the times of its steps."""

    def __init__(self, program: Program, mode: PrecisionConfig, device: torch.device) -> None:
        model, self._loss, batch = program
        self._moments = Moments(device)
        self._precision = precision = Precision(mode, device)
        self._model = precision.convert(model)
        self._optimizer = precision.optimizer(partial(AdamW, fused=True), self._model.parameters())
        batch = map_tensors(batch, lambda tensor: tensor.to(device))
        self._batch = as_model_input(batch, precision.parameters_dtype, channels_last=False)
        self.tf32 = precision.config.tf32
        self.works: list[OperatorWork] = []
        self.works_us: list[list[float]] = []  # by step
        self.step_ms: list[float] = []

    def measure(self) -> None:
        """Take a step to warm up, one whose operators are timed, and one that is timed as a whole."""
        self._step()
        self._time_operators()
        start = self._moments.now()
        self._step()
        self.step_ms.append(self._moments.since_ms(start))

    def predicted_ms(self, calibration: Calibration) -> float:
        return StepWork(self.works).on(calibration.device, tf32=self.tf32, calibration=calibration).step_ms.expected

    def _step(self) -> None:
        with self._precision.flags():
            with self._precision.autocast():
                loss = self._loss(self._model, self._batch)
            self._precision.backward(loss)
            self._precision.step(self._optimizer)
            self._precision.update()
            self._optimizer.zero_grad()

    def _time_operators(self) -> None:
        log, times, moments = WorkLog(), list[tuple[Any, Any, int]](), self._moments

        def around(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            begin = moments.now()
            result = func(*args, **kwargs)
            end, inputs = moments.now(), [*tensors_in((args, kwargs))]
            times.append((begin, end, log.add(func, args, kwargs, inputs, result, in_backward=is_in_backward())))
            return result

        if moments.has_queue:  # with 30 ms of work before, the device never waits for the host between operators
            factor = torch.empty(4096, 4096, device=self._precision.device)
            factor @ factor
            start = moments.now()
            factor @ factor
            for _ in range(ceil(30 / moments.since_ms(start))):
                factor @ factor
        with OperatorMode(around):
            self._step()
        moments.wait()
        self.works, works_us = log.works, list[float]()
        for begin, end, num_works in times:
            flops = [max(work.flops, 1) for work in self.works[len(works_us) : len(works_us) + num_works]]
            works_us += [1e3 * moments.between_ms(begin, end) * own / sum(flops) for own in flops]
        self.works_us.append(works_us)


def calibrate(device: torch.device) -> Calibration:
    """Measure the device in about a minute; nothing else should run on it."""
    began, is_host = perf_counter(), device.type == "cpu"  # which also runs the operators
    configs = [PRECISION_MODES[mode] for mode in (_ON_CPU if is_host else _MODES)]
    usable = [one for one in configs if not (unsupported_reason(one, device) or why_emulated(one, device))]
    own, others = ([_Training(each, mode, device) for mode in usable for each in some()] for some in (programs, checks))
    while not own[0].step_ms or perf_counter() - began < _SECONDS:
        for training in (*own, *others):  # in turn: a disturbance hits different trainings
            training.measure()
    calibration = Calibration(device_here(device), _measured(own), call_us=0.0)
    shortest = sorted(own, key=lambda one: median(one.step_ms))[:_SHORTEST]
    host_ms = [median(one.step_ms) - is_host * one.predicted_ms(calibration) for one in shortest]
    calls = [sum(work.num_calls for work in one.works if work.kind != "none") for one in shortest]
    call_us = 1e3 * median(ms / number for ms, number in zip(host_ms, calls, strict=True))
    calibration = replace(calibration, call_us=max(call_us, 0.0))
    errors = [log(one.predicted_ms(calibration) / median(one.step_ms)) for one in others]
    return replace(calibration, spread=sqrt(fmean(error**2 for error in errors)))


def _measured(trainings: Sequence[_Training]) -> tuple[MeasuredWork, ...]:
    times: dict[tuple[OperatorWork, bool], list[float]] = defaultdict(list)
    for training in trainings:
        for work, *us in zip(training.works, *training.works_us, strict=True):
            times[work, training.tf32] += us
    # What runs no kernel takes the time of observing it.
    idle_us = median(median(us) for (work, _), us in times.items() if work.kind == "none")
    typical = ((work, median(us), tf32) for (work, tf32), us in times.items() if work.num_kernels)
    return tuple(MeasuredWork(work, max(us - idle_us, us / 4), tf32) for work, us, tf32 in typical)


def calibrate_and_keep(device: str) -> tuple[Calibration, Path]:
    """Calibrate the device that `device=` names, when it is free, and keep what was measured."""
    with taken_device(device) as taken:
        found = calibrate(taken.device)
    file = calibration_file(found.device.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(found).decode())
    return found, file


def calibration_document(found: Calibration, file: Path) -> Document:
    """What was measured, and what it is good for."""
    rates = sorted((str(one.work.dtype), one.work.flops / one.us / 1e6) for one in found.measured if one.work.flops)
    reached = " and ".join(f"{number(rate)} TFLOP/s in {dtype}" for dtype, rate in dict(rates).items())  # the highest
    factor = in_range(1.0, found.spread).high
    noise = "; that is wide: calibrate again when nothing else runs here" if factor > 1.8 else ""
    prose = (
        f"{len(found.measured)} operators were timed; they reach {reached}. Nine of ten other trainings take the "
        f"predicted time within a factor of {number(factor, 3)}{noise}. Later predictions for this device use {file}."
    )
    section = Section(title=f"{found.device.name}: calibrated", kind="card", blocks=(Prose(prose),))
    return Document(title="Calibration", sections=(section,), data={"schema": 1, "file": str(file), **asdict(found)})
