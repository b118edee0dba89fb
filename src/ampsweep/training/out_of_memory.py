"""Out-of-memory errors: the facts they hold, and the phase of the training they interrupted."""

import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

import psutil
import torch

from ampsweep.precision import Precision
from ampsweep.record.outcome import OutOfMemory, Phase
from ampsweep.text import BYTES_OF, one_line
from ampsweep.tracing.memory_limit import MemoryLimit, MemoryLimitError, is_out_of_memory
from ampsweep.training.evaluate import evaluate
from ampsweep.training.trainer import Trainer

_OF_HOST: Final = ("DefaultCPUAllocator",)
_WITH_STATISTICS: Final = ("cuda", "xpu")


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


def out_of_memory(
    error: BaseException, device: torch.device, limit: MemoryLimit, trainer: Trainer | None = None
) -> OutOfMemory | None:
    """Describe an out-of-memory error; None for any other error.

    Call it while the error is being handled, because its traceback keeps tensors alive.

    Args:
        device: the run's device; the error may be about the host's memory all the same.
        limit: the run's own memory limit.
        trainer: the trainer that raised the error; None if the run was still being built.
    """
    if not is_out_of_memory(error):
        return None
    return OutOfMemory(
        phase="build" if trainer is None else phase_of(error),
        step=None if trainer is None else trainer.step,
        requested_bytes=error.requested_bytes if isinstance(error, MemoryLimitError) else _asked_for(str(error)),
        in_use_bytes=error.in_use_bytes if isinstance(error, MemoryLimitError) else _in_use(error, device),
        limit_bytes=limit.bytes,
        error=one_line(error),
    )


def phase_of(error: BaseException) -> Phase:
    """Find the phase in which a `Trainer` raised `error`, by the outermost call in the traceback that has a phase.

    Recomputation by activation checkpointing within backward counts as `backward`.
    """
    in_step = False
    for code in _codes(error):
        if code in _PHASES:
            return _PHASES[code]
        in_step = in_step or code is _STEP
    return "forward" if in_step else "other"


def _codes(error: BaseException) -> Iterator[CodeType]:
    """Yield the code of the calls that the error went through, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next


def _asked_for(message: str) -> int | None:
    """Read the requested bytes from the text, torch's only place for them: exact on the CPU, rounded on a GPU."""
    return _size(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", message)


def _in_use(error: BaseException, device: torch.device) -> int | None:
    """Bytes in use: by tensors on a GPU; by the process, if the host had no more memory."""
    is_of_device = isinstance(error, RuntimeError) and not any(sign in str(error) for sign in _OF_HOST)
    if device.type not in _WITH_STATISTICS or not is_of_device:
        return int(psutil.Process().memory_info().rss)
    # The allocator's statistics are those of now: some tensors have gone since, as the error went up.
    then = _size(r"allocated memory ([\d.]+) (bytes|KiB|MiB|GiB) is allocated", str(error))
    return int(torch.get_device_module(device).memory_allocated(device)) if then is None else then


def _size(pattern: str, message: str) -> int | None:
    found = re.search(pattern, message, re.IGNORECASE)
    return None if found is None else round(float(found[1]) * BYTES_OF[found[2]])
