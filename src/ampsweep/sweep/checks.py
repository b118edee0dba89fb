"""Checks that need torch, the device or the user's files, for every point of a sweep before the first one starts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash
from ampsweep.config.resolved import COMPONENTS, component_name
from ampsweep.config.schema import Config
from ampsweep.data.base import Data, Validatable
from ampsweep.monitors.snapshot import why_no_snapshot
from ampsweep.precision.support import unsupported_reason
from ampsweep.sweep.checked import Checked
from ampsweep.sweep.model_check import check_fit
from ampsweep.sweep.too_large import too_large
from ampsweep.tracing.memory_limit import why_no_limit
from ampsweep.tracking.tracker import check_tracking
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.training.build.built import build_data, build_model, steps_of
from ampsweep.training.build.device import resolve_device
from ampsweep.training.build.instantiate import locate
from ampsweep.training.build.optimizer import decide_fused
from ampsweep.training.checkpoint import CheckpointError, find_checkpoint, load_checkpoint, require_same_model


def check_points(configs: Sequence[Config], wandb: WandbAddress | None) -> list[Checked]:
    """Check every config; what several of them share is checked once."""
    results: list[Checked] = []
    memory: dict[str, Checked] = {}
    sizes: dict[tuple[str, str], Checked] = {}
    for config in configs:
        shared = [config.model, config.data, config.task, config.trainer, config.tracking, config.max_batch]
        parts = [*shared, config.optimizer.fused, config.device]
        key = json.dumps(parts, sort_keys=True, default=vars)
        if key not in memory:
            memory[key] = _check(config, wandb)
        workload = (key, config_hash(replace(config, seed=0)))  # which leaves out where it is tracked
        if workload not in sizes:
            sizes[workload] = _with_size(config, _with_support(config, memory[key]))
        results.append(sizes[workload])
    return results


def check_checkpoint(config: Config, path: Path) -> Path:
    """The checkpoint file that `path` means, of the same model as the config's.

    Raises:
        UserError: it is missing, damaged or of another model.
    """
    with torch.random.fork_rng(), torch.device("meta"):
        model = build_model(config)
    try:
        file = find_checkpoint(path)
        require_same_model(load_checkpoint(file), file, model, component_name(config.model))
    except CheckpointError as error:
        raise UserError(f"resume={path}: {error}") from error
    return file


def check_parts(config: Config, device: torch.device, data: Data) -> Checked:
    """What the parts are together, without holding any memory for the model.

    Raises:
        UserError: a part refuses its settings, or they do not fit together or the device.
    """
    decide_fused(config.optimizer.fused, device)
    fit = check_fit(config, data)
    num_parameters = sum(parameter.numel() for parameter in fit.model.parameters())
    return Checked(num_steps=steps_of(config, data), num_parameters=num_parameters, output_bytes=fit.output_bytes)


def check_services(config: Config, device: torch.device, wandb: WandbAddress | None = None) -> None:
    """Refuse what W&B would (a mode without its key, a project or tag it does not take) or what the device cannot do.

    Raises:
        UserError: the reason.
    """
    if config.trainer.memory_snapshot and (reason := why_no_snapshot(device)):
        raise UserError(f"trainer.memory_snapshot=true: {reason}")
    limit_gib = config.trainer.memory_limit_gib
    if limit_gib is not None and (reason := why_no_limit(device, limit_gib, compiles=config.trainer.compile)):
        raise UserError(f"trainer.memory_limit_gib={limit_gib:g}: {reason}")
    if config.max_batch.search and device.type == "cpu" and limit_gib is None:
        raise UserError(
            "max_batch.search=true on the CPU needs trainer.memory_limit_gib: without it the search would go on until "
            "the machine itself has no memory left"
        )
    try:
        check_tracking(config.tracking, wandb)
    except ValueError as error:
        raise UserError(str(error)) from error


def build_checked_data(config: Config, device: torch.device) -> Data:
    """The data set, all of it read where it can be checked in full.

    Raises:
        UserError: it cannot be trained on.
    """
    for group in COMPONENTS:
        locate(group, getattr(config, group))
    data = build_data(config, device)
    if isinstance(data, Validatable):
        try:
            data.validate()
        except ValueError as error:
            raise UserError(f"data={component_name(config.data)}: {error}") from error
    return data


def _check(config: Config, wandb: WandbAddress | None) -> Checked:
    try:
        device = resolve_device(config.device)
        check_services(config, device, wandb)
        return check_parts(config, device, build_checked_data(config, torch.device("cpu")))
    except UserError as error:
        return Checked(problem=str(error))


def _with_support(config: Config, checked: Checked) -> Checked:
    if checked.problem:
        return checked
    return replace(checked, unsupported=unsupported_reason(config.precision, resolve_device(config.device)))


def _with_size(config: Config, checked: Checked) -> Checked:
    if checked.problem or checked.unsupported:
        return checked
    sentence = too_large(config, resolve_device(config.device), checked)
    is_refused = sentence is not None and config.predict.must_fit
    return replace(checked, too_large=sentence, problem=sentence if is_refused else None)
