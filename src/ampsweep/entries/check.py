"""Checks that need torch, the device or the user's files, for every point of a sweep before the first one starts."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from ampsweep.build.built import build_data, steps_of
from ampsweep.build.device import resolve_device
from ampsweep.build.instantiate import locate
from ampsweep.config.errors import UserError
from ampsweep.config.resolved import COMPONENTS, component_name
from ampsweep.config.schema import Config
from ampsweep.data.base import Data, Validatable
from ampsweep.entries.checked import Checked
from ampsweep.entries.fit import check_fit
from ampsweep.monitors.snapshot import why_no_snapshot
from ampsweep.precision.support import unsupported_reason
from ampsweep.tracking.factory import make_trackers
from ampsweep.tracking.wandb_process import WandbAddress
from ampsweep.training.checkpoint import CheckpointError, find_checkpoint, load_checkpoint, require_same_model


def check_points(configs: Sequence[Config]) -> list[Checked]:
    """Check every config; what several of them share is checked once."""
    results: list[Checked] = []
    memory: dict[str, Checked] = {}
    for config in configs:
        parts = [config.model, config.data, config.task, config.trainer, config.tracking, config.device]
        key = json.dumps(parts, sort_keys=True, default=vars)
        if key not in memory:
            memory[key] = _check_parts(config)
        results.append(_with_support(config, memory[key]))
    return results


def check_checkpoint(config: Config, path: Path, model: torch.nn.Module) -> Path:
    """The checkpoint file that `path` means, of the same model as `model` (which may be on the meta device).

    Raises:
        UserError: it is missing, damaged or of another model.
    """
    try:
        file = find_checkpoint(path)
        require_same_model(load_checkpoint(file), file, model, component_name(config.model))
    except CheckpointError as error:
        raise UserError(f"resume={path}: {error}") from error
    return file


def check_tracking(config: Config, wandb: WandbAddress | None = None) -> None:
    """Refuse what W&B would: a mode without its key, a project or tag it does not take.

    Raises:
        UserError: the reason.
    """
    try:
        make_trackers(config.tracking, group=None, say=lambda _: None, wandb=wandb)
    except ValueError as error:
        raise UserError(str(error)) from error


def check_snapshot(config: Config, device: torch.device) -> None:
    """Refuse a memory snapshot where the device has none.

    Raises:
        UserError: the reason.
    """
    if config.trainer.memory_snapshot and (reason := why_no_snapshot(device)):
        raise UserError(f"trainer.memory_snapshot=true: {reason}")


def build_checked_data(config: Config, device: torch.device, *, thorough: bool) -> Data:
    """The data set; `thorough` reads all of it, as is right once before a sweep.

    Raises:
        UserError: it cannot be trained on.
    """
    for group in COMPONENTS:
        locate(group, getattr(config, group))
    data = build_data(config, device)
    if thorough and isinstance(data, Validatable):
        try:
            data.validate()
        except ValueError as error:
            raise UserError(f"data={component_name(config.data)}: {error}") from error
    return data


def _check_parts(config: Config) -> Checked:
    try:
        check_snapshot(config, resolve_device(config.device))
        check_tracking(config)
        data = build_checked_data(config, torch.device("cpu"), thorough=True)
        model = check_fit(config, data)
        return Checked(
            num_steps=steps_of(config, data),
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        )
    except UserError as error:
        return Checked(problem=str(error))


def _with_support(config: Config, checked: Checked) -> Checked:
    if checked.problem:
        return checked
    reason = unsupported_reason(config.precision, resolve_device(config.device))
    return Checked(unsupported=reason, num_steps=checked.num_steps, num_parameters=checked.num_parameters)
