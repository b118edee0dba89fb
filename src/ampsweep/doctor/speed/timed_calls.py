"""The operators of a step with their times."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from time import monotonic, thread_time
from typing import Any, Final

import numpy as np
import torch

from ampsweep.config.modes import fp32_matmul
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.half_edits import autocast_switches
from ampsweep.doctor.speed.sampled_lines import line_frame
from ampsweep.doctor.speed.step_times import BareTraining, timed_ms
from ampsweep.monitors.step_clock import Moments
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import Call, observe
from ampsweep.observe.functions import FunctionCalls
from ampsweep.observe.operator_work import WorkLog, reads_device
from ampsweep.observe.operators import is_in_backward
from ampsweep.predict.calibrations import kept_calibration, timed_device
from ampsweep.speed.step_time import StepWork
from ampsweep.user_code import CodeLine

_MAX_PASSES: Final = 7
_MIN_PASSES: Final = 4
_LONGER: Final = 3.0  # factor by which passes may exceed their time until there are enough of them


@dataclass(frozen=True, slots=True, eq=False)
class TimedCall(Call):
    ms: float = 0.0  # the minimum over several steps: other load makes an operator longer, never shorter
    flops: int = 0  # operations of a matrix product, a convolution or attention; 0 for all else
    expected_ms: float | None = None  # what its work takes by the speed model; None on a device that it does not know
    function: int = 0  # the number of the call of torch's function that calls it: a recurrent layer is a single one
    line: str | None = None  # of the user's own code that runs meanwhile, in any phase
    switch: CodeEdit | None = None  # leaves autocast on, if the user's own code around it or its forward call does not
    reads_device: bool = False  # on a device with a queue, the host waits for the device in it

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


def timed_in_turn(trainings: Sequence[BareTraining], moments: Moments, *, seconds: float) -> list[TimedStep]:
    """Time the operators of a step of some trainings, in turn for so many seconds, or longer for four passes."""
    end_s = monotonic() + seconds
    late_s = end_s + (_LONGER - 1) * seconds
    observed = [_ObservedSteps(training, moments) for training in trainings]
    for num_passes in range(1, _MAX_PASSES):
        if monotonic() > (end_s if num_passes >= _MIN_PASSES else late_s):
            break
        for steps in observed:
            steps.take()
    return [steps.timed_step() for steps in observed]


class _CountedFunctions(FunctionCalls):
    num_calls = 0

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self.num_calls += 1
        return func(*args, **kwargs)


class _ObservedSteps:
    """Several passes over a step of a training; the first also records what each operator is and who calls it."""

    def __init__(self, training: BareTraining, moments: Moments) -> None:
        self._training, self._moments = training, moments
        self._log, self._num_works, self._functions = WorkLog(), list[int](), _CountedFunctions()
        self._calls, self._switches = list[TimedCall](), dict[str | None, CodeEdit | None]()
        with self._functions:
            self._ms = [self._observe(self._study, places=True)]

    def _study(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        frame, name = line_frame(sys._getframe()), call.operator.removeprefix("aten.")
        switch = None
        if call.forward is not None:
            switch = self._calls[call.forward.index].switch
        elif self._training.precision.autocast and call.phase == "forward" and torch.float32 in call.inputs:
            if call.place not in self._switches:
                self._switches[call.place] = next(autocast_switches(frame), None)
            switch = self._switches[call.place]
        studied = TimedCall(
            **{field.name: getattr(call, field.name) for field in fields(call)},
            function=self._functions.num_calls,
            line=None if frame is None else CodeLine.of(frame),
            switch=switch,
            reads_device=reads_device(name, [*tensors_in((args, kwargs))], [*tensors_in(result)]),
        )
        self._calls.append(studied)

    def take(self) -> None:
        """Take a step for its times alone; a step with other operators than the first is dropped."""
        seen: list[str] = []
        ms = self._observe(lambda call, *_: seen.append(call.operator), places=False)
        if seen == [call.operator for call in self._calls]:
            self._ms.append(ms)

    def timed_step(self) -> TimedStep:
        tensor, detach = torch.zeros(()), torch.ops.aten.detach.default
        empty_ms = min(timed_ms(lambda: detach(tensor), self._moments) for _ in range(50))
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
            expected_ms = None if expected_us is None else float(expected_us[own].sum()) / 1e3
            yield {"flops": sum(work.flops for work in works[own]), "expected_ms": expected_ms}

    def _observe(self, on_call: Callable[..., None], *, places: bool) -> list[float]:
        """Take a step; return the time of each operator."""
        moments, noted, now = self._moments, list[tuple[Any, Any]](), self._moments.now
        if self._training.device.type == "cpu" and torch.get_num_threads() == 1:
            now = thread_time  # without the time slices of other processes

        def around(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            start = now()
            result = operator(*args, **kwargs)
            noted.append((start, now()))
            if places:
                inputs, in_backward = [*tensors_in((args, kwargs))], is_in_backward()
                self._num_works.append(self._log.add(operator, args, kwargs, inputs, result, in_backward=in_backward))
            return result

        moments.wait()
        with observe(self._training.model, on_call, around=around, places=places):
            self._training.step()
        moments.wait()
        return [moments.between_ms(start, end) for start, end in noted]
