"""Check a run on its device: the mode, limits and flags, and whether its memory is predicted to fit."""

import timeit
from functools import cache
from typing import Final

import torch
from torch import nn

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.modes import arm_of, dtypes_of
from ampsweep.config.schema import Config
from ampsweep.observe.memory_limit import memory_bytes, why_no_limit
from ampsweep.precision.precision import precision_class
from ampsweep.run.ending import why_unsupported
from ampsweep.sweep.preflight import Checked
from ampsweep.text import not_vouched_for, num_bytes, number

_BYTES_PER_PARAMETER: Final = 64  # upper bound for copies, gradients, states and the temporaries of an update
_EMULATED: Final = 10.0
_OUTPUTS_TWICE: Final = 2  # backward makes at most one gradient per output while the outputs are kept


def check_precision(config: Config, device: torch.device, model: nn.Module) -> None:
    """Raise UnsupportedError if the mode does not fit the model or device; UserError if a package is missing. The model
    may be on the meta device."""
    try:
        reason = why_unsupported(config.precision, device, searches_batch=config.max_batch.search)
        reason = reason or precision_class(config.precision).misfit(config.precision, model)
    except ValueError as error:
        raise UserError(str(error)) from error
    if reason is not None:
        raise UnsupportedError(reason)


def check_limits(config: Config, device: torch.device) -> None:
    """Raise UserError for a limit, a search or a flag that the device does not support."""
    if config.trainer.cudnn_benchmark is not None and device.type != "cuda":
        raise UserError(f"trainer.cudnn_benchmark has an effect on CUDA devices only, and this is {device}")
    limit_gib = config.trainer.memory_limit_gib
    if limit_gib is not None and (reason := why_no_limit(device, limit_gib, compiles=config.trainer.compile)):
        raise UserError(f"trainer.memory_limit_gib={limit_gib:g}: {reason}")
    if config.max_batch.search and device.type == "cpu" and limit_gib is None:
        raise UserError(
            "max_batch.search=true on the CPU needs trainer.memory_limit_gib: without it the search would go on until "
            "the machine itself has no memory left"
        )


def emulated(config: Config, device: torch.device) -> str | None:
    """Return a sentence if a CPU takes ten times as long to multiply matrices in the compute dtype as in float32."""
    dtype = dtypes_of(config).compute
    if device.type != "cpu" or dtype not in ("float16", "bfloat16"):
        return None
    ratio = _product_seconds(dtype) / _product_seconds("float32")
    if ratio < _EMULATED:
        return None
    return f"this CPU emulates {dtype}: a product of matrices takes {number(ratio, 2)} times as long as in float32"


@cache
def _product_seconds(dtype: str) -> float:
    """The shortest of some products of 256x256 matrices by one thread, which other load disturbs least."""
    num_threads, matrix = torch.get_num_threads(), torch.ones(256, 256, dtype=getattr(torch, dtype))
    torch.set_num_threads(1)
    try:
        return min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=5))
    finally:
        torch.set_num_threads(num_threads)


def too_large(config: Config, device: torch.device, checked: Checked) -> str | None:
    """Return a sentence if the run is predicted not to fit its device, None if it fits or cannot be predicted.

    A step is traced only if an upper bound exceeds the limit: 64 bytes a parameter, and twice the batch and the outputs
    of all operators of a forward pass in float32. The checks know both already, so most starts are not slowed.
    """
    limit = memory_bytes(device, config.trainer.memory_limit_gib)
    if not config.predict.with_runs or limit is None or config.max_batch.search:
        return None
    assert checked.num_parameters is not None
    if checked.output_bytes is not None:
        at_most = checked.num_parameters * _BYTES_PER_PARAMETER + _OUTPUTS_TWICE * checked.output_bytes
        if at_most <= limit:
            return None
    from ampsweep.predict.run_prediction import trace_run
    from ampsweep.predict.step_memory import fits, step_memory

    try:
        target, step = trace_run(config, device)
    except UserError:  # the record says why nothing could be predicted
        return None
    if fits(step, target, limit):
        return None
    memory = step_memory(step, target, config.data["batch_size"])
    needed = max(memory.total_bytes, memory.reserved_bytes or 0)
    category, largest = max(memory.peak.items(), key=lambda item: item[1])
    owner = f"{device} has" if config.trainer.memory_limit_gib is None else "trainer.memory_limit_gib leaves"
    return (
        f"{arm_of(config)} with batch {config.data['batch_size']} is predicted not to fit: it takes "
        f"{num_bytes(needed)}, {num_bytes(largest)} of that {category.replace('_', ' ')}, and "
        f"{owner} {num_bytes(limit)}{not_vouched_for(operator.name for operator in memory.unvouched)}"
    )
