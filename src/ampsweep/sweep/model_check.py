"""Check that model, data and task fit each other, with one batch and a model that holds no memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.config.errors import UserError
from ampsweep.config.schema import Config
from ampsweep.data.base import Data, stop_workers
from ampsweep.tasks.base import Turn, turns_of
from ampsweep.text import one_line
from ampsweep.tracing.tensor_bytes import TensorBytes
from ampsweep.training.batches import as_model_input, map_tensors
from ampsweep.training.build.built import build_model
from ampsweep.training.build.instantiate import build_component
from ampsweep.training.turns import trained_parts

_REHEARSE_UP_TO = 50_000_000
"""Largest number of parameters for which a user's own model that refuses the meta device is tried on the CPU."""


@dataclass(frozen=True)
class CheckedModel:
    """A model that was found to take the batches of its data."""

    model: nn.Module
    """The model on the meta device."""
    output_bytes: int
    """Bytes of all outputs of operators in a forward pass, in float32; 0 if they could not be counted."""
    turns: Sequence[Turn]
    """The turns of a step."""


def check_model(config: Config, data: Data) -> CheckedModel:
    """Compute the loss of one batch without its arithmetic.

    No random state is changed.

    Raises:
        UserError: a part refuses its settings, or the model cannot take the batch.
    """
    task = build_component("task", config.task)
    turns = turns_of(task)
    trained_parts(turns)
    try:
        batch = data.train_batch(0)
        stop_workers(data)
    except (Exception, SystemExit) as error:  # the user's own data may raise anything
        raise UserError(f"data={_name(config.data)} has no first batch: {one_line(error)}") from error
    with torch.random.fork_rng(), torch.device("meta"):
        model = build_model(config)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"model={_name(config.model)} has no parameters to train")
    try:
        with torch.random.fork_rng(), torch.no_grad(), TensorBytes(torch.device("meta")) as counted:
            for turn in turns:
                turn.loss(_uncompiled(model), _as_input(config, map_tensors(batch, lambda tensor: tensor.to("meta"))))
    except (Exception, SystemExit) as error:  # as may the user's own model
        if str(config.model["_target_"]).startswith("ampsweep."):
            raise UserError(_misfit(config, error)) from error
        _rehearse(config, batch, model, turns)
        return CheckedModel(model, 0, turns)
    return CheckedModel(model, counted.made_bytes, turns)


def _rehearse(config: Config, batch: Any, on_meta: nn.Module, turns: Sequence[Turn]) -> None:
    """Try a small model for real that does not run on the meta device, for example because it looks at values."""
    if sum(p.numel() for p in on_meta.parameters()) > _REHEARSE_UP_TO:
        return
    with torch.random.fork_rng():
        model = _uncompiled(build_model(config))
        try:
            with torch.no_grad():
                for turn in turns:
                    turn.loss(model, _as_input(config, map_tensors(batch, Tensor.cpu)))
        except (Exception, SystemExit) as error:  # as above
            raise UserError(_misfit(config, error)) from error


def _misfit(config: Config, error: BaseException) -> str:
    names = f"model={_name(config.model)} cannot be trained on data={_name(config.data)} with task={_name(config.task)}"
    return f"{names}: {one_line(error)}"


def _name(component: dict[str, Any]) -> str:
    return str(component.get("name") or component["_target_"])


def _uncompiled(model: nn.Module) -> nn.Module:
    model._compiled_call_impl = None  # undoes Module.compile(): this is one forward pass, not worth compiling
    return model


def _as_input(config: Config, batch: Any) -> Any:
    return as_model_input(batch, torch.float32, channels_last=config.trainer.channels_last)
