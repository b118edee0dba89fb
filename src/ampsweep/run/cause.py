"""The cause of a run's end: an error in this process, or another rank's fault from which it follows."""

import sys
import traceback

import torch

from ampsweep.monitors.environment import device_name
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.own_code import chain_of
from ampsweep.parallel.base import OtherRankError, Parallel, RankFault
from ampsweep.precision.support import refusal_by_kernel
from ampsweep.record.outcome import Status
from ampsweep.recorder.out_of_memory import out_of_memory
from ampsweep.run.failure import record_stuck
from ampsweep.run.request import RunRequest
from ampsweep.text import one_line
from ampsweep.training.trainer import Trainer


def cause_of_end(
    error: BaseException, parallel: Parallel, device: torch.device, limit: MemoryLimit, trainer: Trainer | None = None
) -> RankFault:
    """The cause of an error that has ended a run: on this rank, or on another one before.

    Call it while the error is being handled, because its traceback keeps tensors alive.

    Args:
        trainer: the training that it ended; None: the run was still being built.
    """
    status: Status = "failed"
    sentence = one_line(error)
    if trainer is None:
        oom, refusal = out_of_memory(error, device, limit), None
    else:
        oom = out_of_memory(error, device, limit, trainer.recorder.phase, trainer.step)
        refusal = _refusal_by_compiler(error)
        refusal = refusal or refusal_by_kernel(error, trainer.precision.config, device_name(device) or str(device))
    if oom is not None:
        status, sentence = "oom", oom.sentence
    elif refusal is not None:
        status, sentence = "unsupported", refusal
    trace = "".join(traceback.format_exception(error)) if parallel.world_size > 1 else None
    return parallel.cause(error, RankFault(rank=parallel.rank, status=status, error=sentence, oom=oom, traceback=trace))


def sentence_of(fault: RankFault, parallel: Parallel) -> str:
    """The sentence of a fault in the record; where there are several ranks it names the one that had it."""
    return fault.error if parallel.world_size == 1 else fault.sentence


def error_of(fault: RankFault, error: BaseException, parallel: Parallel) -> BaseException:
    """The error to raise: that of this rank, or one that names the rank whose fault it follows from."""
    return error if fault.rank == parallel.rank else OtherRankError(fault)


def end_stuck(request: RunRequest, parallel: Parallel, sentence: str) -> None:
    """Tell the other ranks of a run that stands still, and record it, from another thread; the process ends next."""
    fault = RankFault(rank=parallel.rank, status="failed", error=sentence)
    parallel.cause(TimeoutError(sentence), fault)
    if request.is_recorded:
        record_stuck(request, sentence_of(fault, parallel))


def _refusal_by_compiler(error: BaseException) -> str | None:
    """One sentence for an error that says that this machine has no working compiler; None for any other."""
    asked = "trainer.compile=true"
    errors = sys.modules.get("torch._inductor.exc")  # private: their types have no public name
    if errors is None:
        return None
    for one in chain_of(error):
        if isinstance(one, errors.InvalidCxxCompiler):
            return f"{asked} needs a C++ compiler, and there is none: install g++, or let the variable CXX name one"
        if isinstance(one, errors.CppCompileError):
            return f"{asked}: {one.cmd[0]} cannot compile what torch has written"
        if isinstance(one, errors.TritonMissing | errors.GPUTooOldForTriton):
            return f"{asked}: {one_line(one)}"
    return None
