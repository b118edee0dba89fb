"""Check that a precision mode fits the model that it is to train, on the device that there is."""

from dataclasses import replace

import torch

from ampsweep.analysis.float8_gain import float8_gain
from ampsweep.config.errors import UserError
from ampsweep.config.schema import Config
from ampsweep.config.seam import precision_before_seam
from ampsweep.precision.float8 import recipe_of
from ampsweep.precision.float8_layers import ALIGNMENT, plan_layers
from ampsweep.precision.precision import misfit, why_emulated
from ampsweep.run.supported import why_unsupported
from ampsweep.sweep.model_check import CheckedModel
from ampsweep.sweep.preflight import Checked


def with_precision(config: Config, device: torch.device, checked: Checked, found: CheckedModel) -> Checked:
    """Add to the checks of a run what its mode makes of the model: why it cannot, or what it can gain.

    Raises:
        UserError: a package that the mode needs is missing.
    """
    for precision in (precision_before_seam(config), config.precision):
        try:
            reason = None if precision is None else misfit(precision, found.model)
        except ValueError as error:
            raise UserError(str(error)) from error
        if reason is not None:
            return replace(checked, unsupported=reason)
    reason = why_unsupported(config.precision, device, searches_batch=config.max_batch.search)
    if reason is not None:
        return replace(checked, unsupported=reason)
    recipe = recipe_of(config.precision)
    return checked if recipe is None else _with_float8(config, device, checked, found, recipe)


def _with_float8(config: Config, device: torch.device, checked: Checked, found: CheckedModel, recipe: str) -> Checked:
    converted = plan_layers(found.model, config.precision.fp32_modules).converted
    shapes = {name: shape for name, shape in found.linear_calls.items() if name in converted}
    for name, shape in () if why_emulated(config.precision, device) else shapes.items():
        if (rows := shape.rows // shape.calls) % ALIGNMENT:
            reason = f"{name} multiplies {rows} rows, and float8 kernels take multiples of {ALIGNMENT}"
            return replace(checked, unsupported=f"{reason}; change data.batch_size")
    gain = float8_gain(shapes.values(), recipe)
    return checked if gain is None else replace(checked, float8_gain=gain.sentence)
