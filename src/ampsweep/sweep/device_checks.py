"""Checks of a run on the device that there is: that its mode fits model and device, and that it is predicted to fit."""

import math
from dataclasses import fields, replace
from typing import Any, Final

import torch

from ampsweep.analysis.recorded import not_vouched_for
from ampsweep.config.errors import UserError
from ampsweep.config.modes import arm_of
from ampsweep.config.schema import OPTIMIZERS, Config
from ampsweep.observe.memory_limit import memory_bytes, why_no_limit
from ampsweep.precision.float8 import recipe_of
from ampsweep.precision.float8_layers import ALIGNMENT, plan_layers
from ampsweep.precision.precision import misfit, why_emulated
from ampsweep.run.ending import why_unsupported
from ampsweep.sweep.model_check import CheckedModel
from ampsweep.sweep.preflight import Checked
from ampsweep.text import num_bytes

_NUM_STATES: Final = {"sgd": 1, "adam": 2, "adamw": 2, "rmsprop": 3, "adagrad": 1}
"""Tensors of a parameter's size that each of the suite's own options keeps for it at most."""
_GRADIENTS: Final = 3
"""Values for each parameter in backward: its gradient so far, one more part of it where it is used again (weights that
are tied, or a penalty on gradients), and their sum."""
_AUTOCAST_COPIES: Final = 2
"""Half-precision values for each parameter: autocast's copy of it, and the gradient of the copy."""
_STEP: Final = 3
"""Temporary values for each parameter in the step of one of the suite's own options; fewer with fused kernels."""
_OUTPUTS_TWICE: Final = 2
"""Factor for outputs in the upper bound: backward makes at most one gradient per output, while the outputs are kept."""


def with_precision(config: Config, device: torch.device, checked: Checked, found: CheckedModel) -> Checked:
    """Add to the checks of a run why the model cannot be trained in its mode.

    Raises:
        UserError: a package that the mode needs is missing.
    """
    try:
        reason = misfit(config.precision, found.model)
    except ValueError as error:
        raise UserError(str(error)) from error
    reason = reason or why_unsupported(config.precision, device, searches_batch=config.max_batch.search)
    if reason is not None:
        return replace(checked, unsupported=reason)
    if recipe_of(config.precision) is None or why_emulated(config.precision, device):
        return checked
    converted = plan_layers(found.model, config.precision.fp32_modules).converted
    for name, shape in found.linear_calls.items():
        if name in converted and (rows := shape.rows // shape.calls) % ALIGNMENT:
            reason = f"{name} multiplies {rows} rows, and float8 kernels take multiples of {ALIGNMENT}"
            return replace(checked, unsupported=f"{reason}; change data.batch_size")
    return checked


def check_limits(config: Config, device: torch.device) -> None:
    """Raise UserError for a limit, a search or a flag that the device cannot do."""
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


def with_size(config: Config, device: torch.device, checked: Checked) -> Checked:
    """Add to the checks of a run that it is predicted not to fit, which `predict.must_fit` makes wrong input."""
    sentence = _too_large(config, device, checked)
    is_refused = sentence is not None and config.predict.must_fit
    return replace(checked, too_large=sentence, wrong_input=sentence if is_refused else None)


def _too_large(config: Config, device: torch.device, checked: Checked) -> str | None:
    """Return a sentence if the run is predicted not to fit its device, None if it fits or cannot be predicted.

    A step is traced only if an upper bound exceeds the device's memory, or there is none: parameters, gradients,
    optimizer state and copies of them, plus twice the batch and the outputs of all operators of a forward pass in
    float32. No step takes more than that bound, the checks know it already, and so an ordinary start is not slowed.
    """
    is_asked = config.predict.with_runs or config.predict.must_fit
    limit = memory_bytes(device, config.trainer.memory_limit_gib)
    if not is_asked or limit is None or config.max_batch.search:
        return None
    if _at_most(config, checked) <= limit:
        return None
    from ampsweep.predict.run_prediction import trace_run

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
    arm = arm_of(config)
    return (
        f"{arm} with batch {config.data['batch_size']} is predicted not to fit: it takes "
        f"{num_bytes(needed)}, {num_bytes(largest)} of that {category.replace('_', ' ')}, and {there_is}"
        f"{not_vouched_for(one.name for one in memory.unvouched)}"
    )


def _at_most(config: Config, checked: Checked) -> float:
    """Bytes of tensors that no step exceeds; infinite where the suite does not know what is kept."""
    assert checked.num_parameters is not None
    num_states = _num_states(config.optimizer)
    if checked.output_bytes is None or num_states is None:
        return math.inf
    precision = config.precision
    size: int = getattr(torch, precision.parameters).itemsize
    per_parameter = size * (1 + _GRADIENTS + num_states + _STEP)
    if precision.autocast:
        per_parameter += _AUTOCAST_COPIES * int(getattr(torch, precision.dtype).itemsize)
    return checked.num_parameters * per_parameter + _OUTPUTS_TWICE * checked.output_bytes


def _num_states(optimizer: dict[str, Any]) -> int | None:
    option = OPTIMIZERS.get(optimizer["name"])
    if optimizer.get("state_dtype") is not None:
        return None  # a state in fewer bits takes less, but the step that packs it more
    if option is None or optimizer["each"] or not optimizer.keys() <= {field.name for field in fields(option)}:
        return None  # an argument of the class may be one for which it keeps more
    return _NUM_STATES[optimizer["name"]]
