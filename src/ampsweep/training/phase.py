"""What a training was doing when an error ended it: read from the error's traceback, so that no step pays for it."""

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from ampsweep.precision import Precision
from ampsweep.record.outcome import Phase
from ampsweep.training.evaluate import evaluate
from ampsweep.training.trainer import Trainer


def _code(function: Any) -> CodeType:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    assert isinstance(function, FunctionType)
    return function.__code__


_PHASES: Final[dict[CodeType, Phase]] = {
    _code(evaluate): "eval",
    _code(Precision.backward): "backward",
    _code(Precision.unscale_): "optimizer",
    _code(Precision.step): "optimizer",
    _code(Precision.update): "optimizer",
    _code(Trainer._clip): "optimizer",
    _code(Trainer._next_batch): "data",
}
_STEP: Final = _code(Trainer.train_step)


def phase_of(error: BaseException) -> Phase:
    """The phase in which `error`, raised by a `Trainer`, came up; the outermost call that tells it does.

    What activation checkpointing computes again within backward is `backward`.
    """
    in_step = False
    for code in _codes(error):
        if code in _PHASES:
            return _PHASES[code]
        in_step = in_step or code is _STEP
    return "forward" if in_step else "other"


def _codes(error: BaseException) -> Iterator[CodeType]:
    """Of the calls that the error went through, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next
