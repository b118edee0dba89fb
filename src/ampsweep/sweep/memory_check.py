"""Check before a run that it is not predicted to need more memory than its device has."""

from typing import Final

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.modes import arm_label
from ampsweep.config.schema import AdamWConfig, Config, SGDConfig
from ampsweep.sweep.preflight import Checked
from ampsweep.tracing.memory_limit import memory_bytes
from ampsweep.training.build.optimizer import decide_fused

_AUTOCAST_COPIES: Final = 2
"""Half-precision values for each parameter: autocast's copy of it, and the gradient of the copy."""
_UNFUSED_COPIES: Final = 2
"""Temporary values for each parameter in the step of an optimizer without fused kernels."""
_OUTPUTS_TWICE: Final = 2
"""Factor for outputs in the upper bound: backward makes at most one gradient per output, while the outputs are kept."""


def too_large(config: Config, device: torch.device, checked: Checked) -> str | None:
    """Return a sentence if the run is predicted not to fit its device, None if it fits or cannot be predicted.

    A step is traced only if an upper bound exceeds the device's memory, or there is none: parameters, gradients,
    optimizer state and what optimizer and autocast copy of them, plus twice the outputs of all operators of a forward
    pass in float32. No step takes more than that bound, the checks know it already, and so an ordinary start is not
    slowed.
    """
    is_asked = config.predict.with_runs or config.predict.must_fit
    limit = memory_bytes(device, config.trainer.memory_limit_gib)
    if not is_asked or limit is None or config.max_batch.search:
        return None
    bound = _at_most(config, device, checked)
    if bound is not None and bound <= limit:
        return None
    from ampsweep.predict.run_prediction import trace_run
    from ampsweep.report.sentences.unvouched import not_vouched_for
    from ampsweep.text import num_bytes

    try:
        traced = trace_run(config, device)
    except UserError:  # the record will say why nothing could be predicted
        return None
    if traced.fits(limit):
        return None
    memory = traced.memory
    needed = max(memory.total_bytes, memory.reserved_bytes or 0)
    category, largest = max(memory.peak.items(), key=lambda item: item[1])
    limited = config.trainer.memory_limit_gib is not None
    there_is = f"trainer.memory_limit_gib leaves {num_bytes(limit)}" if limited else f"{device} has {num_bytes(limit)}"
    return (
        f"{arm_label(config.precision)} with batch {config.data['batch_size']} is predicted not to fit: it takes "
        f"{num_bytes(needed)}, {num_bytes(largest)} of that {category.replace('_', ' ')}, and {there_is}"
        f"{not_vouched_for(one.name for one in memory.unvouched)}"
    )


def _at_most(config: Config, device: torch.device, checked: Checked) -> int | None:
    """Bytes of tensors that no step exceeds; None where they are not known."""
    assert checked.num_parameters is not None
    if checked.output_bytes is None:
        return None
    precision = config.precision
    size: int = getattr(torch, precision.parameters).itemsize
    copies = 0 if decide_fused(config.optimizer.fused, device) else _UNFUSED_COPIES * size
    if precision.autocast:
        copies += _AUTOCAST_COPIES * getattr(torch, precision.dtype).itemsize
    per_parameter = size * (2 + _num_states(config)) + copies
    return checked.num_parameters * per_parameter + _OUTPUTS_TWICE * checked.output_bytes


def _num_states(config: Config) -> int:
    """Number of tensors of a parameter's size that the optimizer keeps for it."""
    if isinstance(config.optimizer, AdamWConfig):
        return 2
    return 1 if isinstance(config.optimizer, SGDConfig) and config.optimizer.momentum else 0
