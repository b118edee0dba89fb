"""The operators of a step with their times."""

import sys
from collections import defaultdict
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
from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.monitors.step_clock import Moments
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import Call, observe
from ampsweep.observe.functions import FunctionMode
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
    is_of_parameter: bool = False  # it casts a parameter
    cast_up: int | None = None  # for a cast to half precision, the index of the cast to float32 before it
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


def by_origin(calls: Iterable[TimedCall]) -> dict[tuple[object, ...], list[TimedCall]]:
    """Group calls by module, line, operator and phase, without casts, which float32 lacks."""
    found: dict[tuple[object, ...], list[TimedCall]] = defaultdict(list)
    for call in calls:
        if not call.is_cast:
            found[call.module, call.place, call.operator, call.phase].append(call)
    return found


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


class _ObservedSteps:
    """Several passes over a step of a training; the first also records what each operator works on."""

    def __init__(self, training: BareTraining, moments: Moments) -> None:
        self._training, self._moments = training, moments
        self._calls: list[TimedCall] = []
        self._ms: list[list[float]] = []
        self._log, self._num_works = WorkLog(), list[int]()
        switches = dict[str | None, CodeEdit | None]()
        origins = TensorOrigins(training.model, (), FunctionMode(training.device.type))

        def study(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
            taken, made = [*tensors_in(args), *tensors_in(kwargs)], [*tensors_in(result)]
            source = origins.of(taken[0]).made if call.is_cast else None
            frame, switch = line_frame(sys._getframe()), None
            if call.forward is not None:
                switch = self._calls[call.forward.index].switch
            elif training.precision.autocast and call.phase == "forward" and torch.float32 in call.inputs:
                if call.place not in switches:
                    switches[call.place] = next(autocast_switches(frame), None)
                switch = switches[call.place]
            is_down = call.is_cast and call.outputs[0] in (torch.float16, torch.bfloat16)
            studied = TimedCall(
                **{field.name: getattr(call, field.name) for field in fields(call)},
                is_of_parameter=source is not None and source.kind == "parameter",
                cast_up=_cast_up(source) if source is not None and is_down and call.phase == "forward" else None,
                line=None if frame is None else CodeLine.of(frame),
                switch=switch,
                reads_device=reads_device(call.operator.removeprefix("aten."), taken, made),
            )
            self._calls.append(studied)
            if call.phase != "update":
                origins.note(call, args, kwargs, result)

        self._ms.append(self._observe(study, places=True))

    def take(self) -> None:
        """Take a step for its times alone; a step with other operators than the first is dropped."""
        seen: list[str] = []
        ms = self._observe(lambda call, *_: seen.append(call.operator), places=False)
        if seen == [call.operator for call in self._calls]:
            self._ms.append(ms)

    def timed_step(self) -> TimedStep:
        tensor, detach = torch.zeros(()), torch.ops.aten.detach.default
        empty_ms = min(timed_ms(lambda: detach(tensor), self._moments) for _ in range(50))
        times = (np.min(self._ms, axis=0).tolist(), self._works())
        return [
            replace(call, ms=max(ms - empty_ms, 0.0), **work)
            for call, ms, work in zip(self._calls, *times, strict=True)
        ]

    def _works(self) -> Iterator[dict[str, Any]]:
        """What each call computes and moves, and how long that should take."""
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
            }

    def _observe(self, on_call: Callable[..., None], *, places: bool) -> list[float]:
        """Take a step; return the time of each operator. With `places` log its work."""
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


def _cast_up(origin: TensorOrigin) -> int | None:
    """The index of the cast to float32 that values come from; None if they come from another cast, or none."""
    current: TensorOrigin | None = origin
    while current is not None and current.call is not None:
        if current.call.is_cast:
            return current.call.index if current.dtype == torch.float32 else None
        current = next((source for source in current.sources if source.call is not None), None)
    return None
