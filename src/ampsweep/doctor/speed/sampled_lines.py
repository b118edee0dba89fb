"""The lines of the user's own code in which a step spends the host's time while no operator runs."""

import sys
from collections import Counter
from dataclasses import dataclass
from threading import Event, Thread, get_ident
from time import monotonic
from types import FrameType
from typing import Any, Final

from torch import nn

from ampsweep.doctor.speed.step_times import BareTraining
from ampsweep.observe.operators import OperatorMode
from ampsweep.user_code import CodeLine, frame_below

_PERIOD_S: Final = 2e-4
_SWITCH_S: Final = 1e-6  # the sampler gets the interpreter at once, not when the next operator lets it go
_MIN_STEPS: Final = 3


@dataclass(frozen=True)
class SampledLine:
    place: CodeLine
    module: str | None  # the innermost module of the model that runs it; None outside
    share: float  # of the step's time that it takes while no operator runs


def sampled_lines(training: BareTraining, *, seconds: float) -> list[SampledLine]:
    """Take steps for so many seconds; return the user's lines between operators, those that take most time first."""
    thread, ended, is_computing = get_ident(), Event(), False
    counts, modules = Counter[CodeLine | None](), dict[CodeLine, str | None]()
    names = {module: name for name, module in training.model.named_modules()}

    def sample() -> None:
        while not ended.wait(_PERIOD_S):
            frame = line_frame(None if is_computing else sys._current_frames().get(thread))
            line = None if frame is None else CodeLine.of(frame)
            counts[line] += 1
            if line is not None and line not in modules:
                modules[line] = _module(frame, names)

    def around(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal is_computing
        is_computing = True
        try:
            return operator(*args, **kwargs)
        finally:
            is_computing = False

    sampler, interval = Thread(target=sample, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        sampler.start()
        end_s, number = monotonic() + seconds, 0
        with OperatorMode(around):
            while number < _MIN_STEPS or monotonic() < end_s:
                training.step()
                number += 1
    finally:
        ended.set()
        sampler.join()
        sys.setswitchinterval(interval)
    known = [(line, count) for line, count in counts.most_common() if line is not None]
    return [SampledLine(line, modules[line], count / counts.total()) for line, count in known]


def line_frame(stack: FrameType | None) -> FrameType | None:
    """The frame of the user's own code that runs in a step, innermost on a stack, or else of a model or a task."""
    return frame_below(stack, BareTraining.step.__code__)


def _module(stack: FrameType | None, names: dict[nn.Module, str]) -> str | None:
    while stack is not None:
        if isinstance(owner := stack.f_locals.get("self"), nn.Module) and owner in names:
            return names[owner]
        stack = stack.f_back
    return None
