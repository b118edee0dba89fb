"""The operators of a step with their times."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from time import monotonic, thread_time
from typing import Any, Final

import numpy as np
import torch

from ampsweep.config.modes import fp32_matmul
from ampsweep.doctor.speed.sampled_lines import line_frame
from ampsweep.doctor.speed.step_times import BareTraining, timed_ms
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import Call, observe
from ampsweep.observe.functions import FunctionMode, RunningFunction
from ampsweep.observe.operator_work import WorkLog
from ampsweep.observe.operators import is_in_backward
from ampsweep.predict.calibrations import kept_calibration, timed_device
from ampsweep.speed.step_time import StepWork
from ampsweep.user_code import CodeLine

_MAX_PASSES: Final = 6


@dataclass(frozen=True, slots=True, eq=False)
class TimedCall(Call):
    ms: float = 0.0  # the minimum over several steps: other load makes an operator longer, never shorter
    flops: int = 0  # operations of a matrix product, a convolution or attention; 0 for all else
    expected_ms: float | None = None  # what its work takes by the speed model; None on a device that it does not know
    reads_device: bool = False  # on a device with a queue, the host waits for the device in it
    function: RunningFunction | None = None  # that calls it, another object for each call; None in autograd's backward
    line: str | None = None  # of the user's own code that runs meanwhile, in any phase

    @property
    def is_float32(self) -> bool:
        return {dtype for dtype in (*self.inputs, *self.outputs) if dtype.is_floating_point} == {torch.float32}

    @property
    def is_half(self) -> bool:
        """True if it takes or returns half precision and is no cast."""
        return not self.is_cast and bool({*self.inputs, *self.outputs} & {torch.float16, torch.bfloat16})


TimedStep = Sequence[TimedCall]


def total_ms(calls: Iterable[TimedCall]) -> float:
    return sum(call.ms for call in calls)


def total_flops(calls: Iterable[TimedCall]) -> int:
    return sum(call.flops for call in calls)


def timed_in_turn(trainings: Sequence[BareTraining], *, seconds: float) -> list[TimedStep]:
    """Time the operators of a step of some trainings, in turn for so many seconds, or six passes."""
    end_s = monotonic() + seconds
    observed = [_ObservedSteps(training) for training in trainings]
    for _ in range(_MAX_PASSES - 1):
        for steps in observed if monotonic() < end_s else ():
            steps.take()
    return [steps.timed_step() for steps in observed]


class _ObservedSteps:
    """Several passes over a step of a training; the first also records what each operator is and who calls it."""

    def __init__(self, training: BareTraining) -> None:
        self._training, self._calls = training, list[TimedCall]()
        self._log, self._num_works = WorkLog(), list[int]()
        functions = FunctionMode(training.device.type)

        def study(call: Call, *_: object) -> None:
            known = {field.name: getattr(call, field.name) for field in fields(call)}
            frame = line_frame(sys._getframe())
            line = None if frame is None else CodeLine.of(frame)
            self._calls.append(TimedCall(**known, function=functions.running, line=line))

        with functions.watching():
            self._ms = [self._observe(study, is_first=True)]

    def take(self) -> None:
        """Take a step for its times alone; a step with more or fewer operators than the first is dropped."""
        ms = self._observe(lambda *_: None, is_first=False)
        if len(ms) == len(self._calls):
            self._ms.append(ms)

    def timed_step(self) -> TimedStep:
        tensor, detach = torch.zeros(()), torch.ops.aten.detach.default
        empty_ms = min(timed_ms(lambda: detach(tensor), self._training.moments) for _ in range(50))
        times = zip(self._calls, np.min(self._ms, axis=0).tolist(), self._works(), strict=True)
        return [replace(call, ms=max(ms - empty_ms, 0.0), **work) for call, ms, work in times]

    def _works(self) -> Iterator[dict[str, Any]]:
        """What each call computes, and how long that should take."""
        works, precision = self._log.works, self._training.precision
        device, expected_us = timed_device(self._training.device, precision), None
        if device is not None:
            tf32, calibration = fp32_matmul(precision) != "highest", kept_calibration(device.name)
            expected_us = StepWork(works).kernels_us(device, tf32=tf32, calibration=calibration)
        for end, number in zip(np.cumsum(self._num_works).tolist(), self._num_works, strict=True):
            own = slice(end - number, end)
            yield {
                "flops": sum(work.flops for work in works[own]),
                "expected_ms": None if expected_us is None else float(expected_us[own].sum()) / 1e3,
                "reads_device": any(work.kind == "wait" for work in works[own]),
            }

    def _observe(self, on_call: Callable[..., None], *, is_first: bool) -> list[float]:
        """Take a step; return the time of each operator."""
        training, moments, noted = self._training, self._training.moments, list[tuple[Any, Any]]()
        now = moments.now
        if training.device.type == "cpu" and torch.get_num_threads() == 1:
            now = thread_time  # without the time slices of other processes

        def around(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            start = now()
            result = operator(*args, **kwargs)
            noted.append((start, now()))
            if is_first:
                inputs, in_backward = [*tensors_in((args, kwargs))], is_in_backward()
                self._num_works.append(self._log.add(operator, args, kwargs, inputs, result, in_backward=in_backward))
            return result

        moments.wait()
        with training.changed(), observe(training.model, on_call, around=around, places=is_first):
            training.step()
        moments.wait()
        return [moments.between_ms(start, end) for start, end in noted]
