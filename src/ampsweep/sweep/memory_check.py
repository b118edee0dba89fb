"""Check before a run that it is not predicted to need more memory than its device has."""

import math
from typing import Final

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.modes import arm_label
from ampsweep.config.schema import Config
from ampsweep.sweep.preflight import Checked
from ampsweep.tracing.memory_limit import memory_bytes

_NUM_STATES: Final = {"sgd": 1, "adam": 2, "adamw": 2, "rmsprop": 3, "adagrad": 1}
"""Tensors of a parameter's size that each of the suite's own options keeps for it at most."""
_OUTPUTS_TWICE: Final = 2
"""Factor for outputs in the upper bound: backward makes at most one gradient per output, while the outputs are kept."""


def too_large(config: Config, device: torch.device, checked: Checked) -> str | None:
    """Return a sentence if the run is predicted not to fit its device, None if it fits or cannot be predicted.

    A step is traced only if an upper bound exceeds the device's memory: parameters, gradients and optimizer state, plus
    twice the outputs of all operators of a forward pass in float32. No step takes more than that bound, the checks know
    it already, and so an ordinary start is not slowed.
    """
    is_asked = config.predict.with_runs or config.predict.must_fit
    limit = memory_bytes(device, config.trainer.memory_limit_gib)
    if not is_asked or limit is None or config.max_batch.search or _at_most(config, checked) <= limit:
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


def _at_most(config: Config, checked: Checked) -> float:
    """Bytes that no step exceeds; infinite for an optimizer of which the suite does not know what it keeps."""
    assert checked.num_parameters is not None
    size: int = getattr(torch, config.precision.parameters).itemsize
    num_states = _NUM_STATES.get(config.optimizer["name"], math.inf)
    if config.optimizer.get("each"):
        num_states = math.inf
    return checked.num_parameters * size * (2 + num_states) + _OUTPUTS_TWICE * checked.output_bytes
