"""The outcome of an error that ends a run, on this rank or by another rank's fault."""

import sys
import traceback

import torch

from ampsweep.monitors.environment import device_name
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.base import OtherRankError, Parallel, RankFault
from ampsweep.precision.support import refusal_by_kernel
from ampsweep.recorder.out_of_memory import out_of_memory
from ampsweep.records.outcome import Status
from ampsweep.run.failure import record_stuck
from ampsweep.run.request import RunRequest
from ampsweep.text import one_line
from ampsweep.training.trainer import Trainer
from ampsweep.user_code import chain_of


def classify_error(
    error: BaseException, parallel: Parallel, device: torch.device, limit: MemoryLimit, trainer: Trainer | None = None
) -> RankFault:
    """Classify an error that ends a run (without `trainer`, while it was built); the fault may be of another rank that
    caused it. Call it while the error is being handled, because its traceback keeps tensors alive."""
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
    rank, trace = None, None
    if parallel.world_size > 1:
        rank, trace = parallel.rank, "".join(traceback.format_exception(error))
    return parallel.cause(error, RankFault(rank=rank, status=status, error=sentence, oom=oom, traceback=trace))


def error_of(fault: RankFault, error: BaseException, parallel: Parallel) -> BaseException:
    """The error to raise: this rank's own, or OtherRankError."""
    return error if fault.rank in (None, parallel.rank) else OtherRankError(fault)


def end_stuck(request: RunRequest, parallel: Parallel, sentence: str) -> None:
    """Report and record, from another thread, that the run hangs; the process ends next."""
    rank = None if parallel.world_size == 1 else parallel.rank
    fault = RankFault(rank=rank, status="failed", error=sentence)
    parallel.cause(TimeoutError(sentence), fault)
    if request.is_recorded:
        record_stuck(request, fault.sentence)


def _refusal_by_compiler(error: BaseException) -> str | None:
    """A sentence if the error says that this machine has no working compiler, else None."""
    setting = "trainer.compile=true"
    errors = sys.modules.get("torch._inductor.exc")  # private: their types have no public name
    if errors is None:
        return None
    for link in chain_of(error):
        if isinstance(link, errors.InvalidCxxCompiler):
            return f"{setting} needs a C++ compiler, and there is none: install g++, or let the variable CXX name one"
        if isinstance(link, errors.CppCompileError):
            return f"{setting}: {link.cmd[0]} cannot compile what torch has written"
        if isinstance(link, errors.TritonMissing | errors.GPUTooOldForTriton):
            return f"{setting}: {one_line(link)}"
    return None
