"""Errors that mean a lack of memory, what they tell of it, and what the training was doing meanwhile."""

import errno
import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

import psutil
import torch

from ampsweep.precision import Precision
from ampsweep.record.outcome import OutOfMemory, Phase
from ampsweep.text import BYTES_OF, one_line
from ampsweep.tracing.memory_limit import MemoryLimit
from ampsweep.tracing.tensor_bytes import MemoryLimitError
from ampsweep.training.evaluate import evaluate
from ampsweep.training.trainer import Trainer

_SIGNS: Final = (
    "DefaultCPUAllocator",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
)
"""Of those that have no exception type of their own: the allocators of the CPU and of mps, and what CUDA and its
libraries (cuBLAS, cuDNN) take for themselves, past torch's allocator."""
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
    """Describe an error that means a lack of memory; None: it means something else.

    To be asked while the error is handled, as its traceback holds tensors.

    Args:
        device: that of the run; the error may be about the host's memory all the same.
        limit: the run's own.
        trainer: what raised it; None while the run was being built.
    """
    if not is_out_of_memory(error):
        return None
    return OutOfMemory(
        phase="build" if trainer is None else phase_of(error),
        step=None if trainer is None else trainer.step,
        requested_bytes=error.requested_bytes if isinstance(error, MemoryLimitError) else _asked_for(str(error)),
        in_use_bytes=error.in_use_bytes if isinstance(error, MemoryLimitError) else _in_use(error, device),
        limit_bytes=limit.bytes,
        told=one_line(error),
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the device or the host had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


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


def _asked_for(message: str) -> int | None:
    """torch keeps the size in the text alone: exact on the CPU, on a GPU with two decimals."""
    return _size(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", message)


def _in_use(error: BaseException, device: torch.device) -> int | None:
    """By tensors on a GPU; by the process, where the host had no more."""
    if device.type not in _WITH_STATISTICS or not isinstance(error, torch.OutOfMemoryError):
        return int(psutil.Process().memory_info().rss)
    # The allocator's statistics are those of now: some tensors have gone since, as the error went up.
    then = _size(r"allocated memory ([\d.]+) (bytes|KiB|MiB|GiB) is allocated", str(error))
    return int(torch.get_device_module(device).memory_allocated(device)) if then is None else then


def _size(pattern: str, message: str) -> int | None:
    found = re.search(pattern, message, re.IGNORECASE)
    return None if found is None else round(float(found[1]) * BYTES_OF[found[2]])
