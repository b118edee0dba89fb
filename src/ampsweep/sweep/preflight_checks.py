"""Checks before a sweep or a single run that need torch, the device or the user's files."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.identity import training_hash
from ampsweep.config.modes import arm_of
from ampsweep.config.schema import COMPONENTS, Config, component_name
from ampsweep.data.base import Data, Validatable
from ampsweep.launch.device_lock import check_lock
from ampsweep.launch.signals import StopRequest
from ampsweep.launch.watchdog import TimeLimitError, Watchdog, interrupt_main_thread
from ampsweep.monitors.contamination import UseBeforeRun
from ampsweep.monitors.memory import why_no_snapshot
from ampsweep.parallel.fitting import check_fit, unused
from ampsweep.parallel.place import RankPlace, place_in
from ampsweep.precision.precision import unsupported_reason
from ampsweep.run.directories import checkpoint_path
from ampsweep.run.lifecycle import BUILDING_GRACES, PreparedRun
from ampsweep.run.rank import num_processes
from ampsweep.sweep.device_checks import too_large, with_precision
from ampsweep.sweep.model_check import CheckedModel, check_model
from ampsweep.sweep.preflight import Checked
from ampsweep.text import one_line
from ampsweep.tracing.feeding import feeding
from ampsweep.tracing.memory_limit import MemoryLimit, why_no_limit
from ampsweep.tracking.tracker import check_tracking
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.training.build.built import build_data, build_model, steps_of
from ampsweep.training.build.device import RunDevice, resolve_device, run_devices
from ampsweep.training.build.fused_kernels import has_fused_kernels_for_shards
from ampsweep.training.build.instantiate import locate
from ampsweep.training.build.learning_rates import check_rates
from ampsweep.training.build.optimizer import rehearse_optimizers, settings_of
from ampsweep.training.checkpoint import CheckpointError, require_same_model
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.out_of_memory import out_of_memory
from ampsweep.training.turns import trained_parts


def check_runs(
    configs: Sequence[Config],
    wandb: WandbAddress | None,
    elsewhere: bool,
    *,
    send: Callable[[object], None],
    stop: StopRequest,
) -> list[Checked]:
    """Check every config; parts that several configs share are checked once. `send` gets what is checked next.

    Of runs `elsewhere`, on a machine with other devices, everything is checked but what depends on the device.
    """
    results: list[Checked] = []
    memory: dict[str, Checked] = {}
    sizes: dict[tuple[str, str], Checked] = {}
    models: dict[str, CheckedModel] = {}
    optimizers: dict[str, Checked] = {}
    checkpoints: dict[str, Checked] = {}
    services = _Services(wandb)
    for config in configs:
        shared = [config.model, config.data, config.task, config.trainer, config.tracking, config.max_batch]
        key = _key(*shared, config.device, config.precision.fp32_modules)
        if key not in memory:
            send(f"model={component_name(config.model)} with data={component_name(config.data)}")
            memory[key] = _check(config, services, elsewhere, stop, models, key)
        with_optimizer = _key(key, config.optimizer, config.scheduler, config.precision.parameters)
        if with_optimizer not in optimizers:
            optimizers[with_optimizer] = _with_optimizer(config, elsewhere, memory[key], models.get(key), stop)
        workload = (with_optimizer, training_hash(replace(config, seed=0)))  # which leaves out where it is tracked
        if workload not in sizes:
            parts = _with_ranks(config, optimizers[with_optimizer], models.get(key), stop)
            sizes[workload] = parts if elsewhere else _with_device(config, parts, models.get(key))
        found = sizes[workload]
        if config.begins_elsewhere and found.wrong_input is None:
            key = _key(config.resume, config.model, config.data, config.parallel)
            if key not in checkpoints:
                checkpoints[key] = _with_checkpoint(config)
            found = replace(found, wrong_input=checkpoints[key].wrong_input)
        results.append(found)
    return results


def check_single_run(config: Config, taken: RunDevice, wandb: WandbAddress | None) -> tuple[PreparedRun, Checked]:
    """Check the single run of a command on its device, which this process has taken, and build its data there.

    Raises:
        UserError: the device cannot do the mode (except in a W&B agent, whose sweep goes on regardless), or a part
            refuses its settings.
    """
    device = taken.device
    unsupported = unsupported_reason(config.precision, device)
    if unsupported is not None and not is_agents_run():
        raise UserError(f"precision={arm_of(config)}: {unsupported}")
    _check_limits(config, device)
    _Services(wandb).check(config)
    limit = MemoryLimit(device, config.trainer.memory_limit_gib)
    prepared, checked = PreparedRun(taken, limit, UseBeforeRun(device), unsupported), Checked(unsupported=unsupported)
    try:
        with limit, _watched(config):
            data = _checked_data(config, device)
    except (RuntimeError, MemoryError, OSError) as error:
        oom = out_of_memory(error, device, limit)
        if oom is None:
            raise
        prepared = replace(prepared, oom=oom)  # which is how the run will end
    else:
        prepared = replace(prepared, data=data)
        with _watched(config):
            parts, found = _check_parts(config, data)
            _check_optimizer(config, device, found, parts)
        parts = with_precision(config, device, parts, found)
        if parts.unsupported is not None and not is_agents_run():
            raise UserError(f"precision={arm_of(config)}: {parts.unsupported}")
        prepared = replace(prepared, unsupported=unsupported or parts.unsupported)
        checked = _with_size(config, device, parts)
    if checked.wrong_input is not None:
        raise UserError(checked.wrong_input)
    return prepared, checked


def _with_checkpoint(config: Config) -> Checked:
    """Check the checkpoint that a run is to go on from."""
    path = checkpoint_path(config)
    assert path is not None, "the run begins with one"
    try:
        check_checkpoint(config, path)
    except UserError as error:
        return Checked(wrong_input=str(error))
    return Checked()


def check_checkpoint(config: Config, path: Path) -> None:
    """Check that `path` is a checkpoint of the config's model, or the directory of a run with one.

    Raises:
        UserError: it is missing, damaged or of another model, or the run's ranks cannot go on where it was in the data.
    """
    if (place := place_in()) is not None:
        world_size = place.world_size
    else:
        is_alone = config.parallel.strategy == "single"
        world_size = 1 if is_alone else num_processes(config.parallel, config.device)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = build_model(config)
    try:
        found = find_checkpoint(path)
        require_same_model(found.checkpoint, found.path, model, component_name(config.model))
        found.next_batch(config.data["batch_size"], world_size)
    except CheckpointError as error:
        raise UserError(f"resume={path}: {error}") from error


def _key(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True, default=vars)


def _check_parts(config: Config, data: Data) -> tuple[Checked, CheckedModel]:
    """Check the parts together, without holding any memory for the model.

    Raises:
        UserError: a part refuses its settings, or they do not fit together or the device.
    """
    found = check_model(config, data)
    num_parameters = sum(parameter.numel() for parameter in found.model.parameters())
    num_steps = steps_of(config, data, len(found.turns))
    return Checked(num_steps=num_steps, num_parameters=num_parameters, output_bytes=found.output_bytes), found


def _check_optimizer(config: Config, device: torch.device, found: CheckedModel, checked: Checked) -> None:
    """Rehearse what trains the model: its optimizers, and the learning rates of the run's steps.

    Raises:
        UserError: they refuse their settings, or do not fit the model or the device.
    """
    assert checked.num_steps is not None
    trains = trained_parts(found.turns)
    optimizers = rehearse_optimizers(config.optimizer, found.model, trains, precision=config.precision, device=device)
    check_rates(config.scheduler, [*optimizers.values()], checked.num_steps)


class _Services:
    """Refuses a config that W&B would refuse, which is asked once about all with the same tracking."""

    def __init__(self, wandb: WandbAddress | None) -> None:
        self._wandb = wandb
        self._refused: dict[str, str | None] = {}

    def check(self, config: Config) -> None:
        """Raise UserError where it is online without a key, or a project, tag or entity is none that W&B takes."""
        key = _key(config.tracking)
        if key not in self._refused:
            self._refused[key] = None
            try:
                check_tracking(config.tracking, self._wandb)
            except ValueError as error:
                self._refused[key] = str(error)
        if (reason := self._refused[key]) is not None:
            raise UserError(reason)


def _check_limits(config: Config, device: torch.device) -> None:
    """Refuse a limit, a snapshot, a search or a flag that the device cannot do.

    Raises:
        UserError: one sentence with the reason.
    """
    if config.trainer.cudnn_benchmark is not None and device.type != "cuda":
        raise UserError(f"trainer.cudnn_benchmark has an effect on CUDA devices only, and this is {device}")
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


def _checked_data(config: Config, device: torch.device) -> Data:
    """Build the data set, and read all of it if its class can check it in full.

    Raises:
        UserError: the data cannot be trained on.
    """
    for group in COMPONENTS:
        if "_target_" in getattr(config, group):
            locate(group, getattr(config, group))
    data = build_data(config, device)
    if isinstance(data, Validatable):
        try:
            with feeding():
                data.validate()
        except ValueError as error:
            raise UserError(f"data={component_name(config.data)}: {error}") from error
    return data


def _check(
    config: Config,
    services: _Services,
    elsewhere: bool,
    stop: StopRequest,
    models: dict[str, CheckedModel],
    key: str,
) -> Checked:
    """Check what does not depend on the optimizer, and leave the model under `key` in `models`."""
    try:
        if not elsewhere:
            device = resolve_device(config.device)
            for one in run_devices(config.device):
                check_lock(str(one))
            _check_limits(config, device)
        services.check(config)
        with _watched(config, stop.interrupt):
            checked, models[key] = _check_parts(config, _checked_data(config, torch.device("cpu")))
    except UserError as error:
        return Checked(wrong_input=str(error))
    return checked


def _with_optimizer(
    config: Config, elsewhere: bool, checked: Checked, found: CheckedModel | None, stop: StopRequest
) -> Checked:
    if found is None:
        return checked
    try:
        with _watched(config, stop.interrupt):
            device = torch.device("cpu") if elsewhere else resolve_device(config.device)
            _check_optimizer(config, device, found, checked)
    except UnsupportedError as error:
        return replace(checked, unsupported=str(error))
    except UserError as error:
        return Checked(wrong_input=str(error))
    return checked


def _with_ranks(config: Config, checked: Checked, found: CheckedModel | None, stop: StopRequest) -> Checked:
    """Check what a training on several ranks needs beyond one process."""
    if found is None or checked.wrong_input or checked.unsupported or config.parallel.strategy == "single":
        return checked
    try:
        with _watched(config, stop.interrupt):
            check_ranks(config, found, place_in())
    except UnsupportedError as error:
        return replace(checked, unsupported=str(error))
    except ValueError as error:
        return Checked(wrong_input=str(error))
    return checked


def check_ranks(config: Config, found: CheckedModel, place: RankPlace | None) -> None:
    """Check that a model can be trained on the ranks of the config, which a launcher may have started at `place`.

    Raises:
        ValueError: it cannot, with a sentence for the user.
    """
    parallel = config.parallel
    if place is None:
        num_processes(parallel, config.device)
    device = resolve_device(config.device)
    check_fit(found.model, parallel, config.precision, device.type, in_parts=found.in_parts)
    if parallel.strategy == "ddp" and not found.in_parts and found.calls_model and not parallel.find_unused_parameters:
        for name in found.unused:
            raise UnsupportedError(f"parallel=ddp: {unused(name)}")
    if parallel.strategy == "fsdp2":
        for name in trained_parts(found.turns):
            settings = settings_of(config.optimizer, name)
            if settings.get("fused") and not has_fused_kernels_for_shards(locate("optimizer", settings)):
                named = component_name(settings)
                raise UserError(f"optimizer.fused=true with parallel=fsdp2: torch's fused {named} takes no shards")
        _check_shards(config, device, found)
    if parallel.strategy == "fsdp2" and not (found.in_parts or found.calls_model):
        raise UserError(
            f"parallel=fsdp2: task={component_name(config.task)} calls parts of the model and not the model itself, "
            "whose call gathers its parameters; use parallel=ddp, or give the task turns"
        )


def _check_shards(config: Config, device: torch.device, found: CheckedModel) -> None:
    """Rehearse the optimizers with parameters of which each rank has a part, as FSDP2 leaves them.

    Raises:
        UserError: one cannot take a step with them.
    """
    from ampsweep.predict.fake_ranks import FakeRanks

    ranks = FakeRanks(config.parallel, torch.device("cpu"), world_size=2)
    trains, precision = trained_parts(found.turns), config.precision
    try:
        with ranks():
            rehearse_optimizers(
                config.optimizer, found.model, trains, precision=precision, device=device, part_of=ranks.shard
            )
    except UserError as error:
        raise type(error)(f"parallel=fsdp2 shards parameters, and {error}; parallel=ddp leaves them whole") from error


@contextmanager
def _watched(config: Config, interrupt: Callable[[], bool] = interrupt_main_thread) -> Iterator[None]:
    """Limit the time of a check, in which the user's own code is called, as that of building the run.

    Raises:
        UserError: it did not end in time.
    """
    watchdog = Watchdog(config.trainer.max_seconds, config.trainer.grace_seconds, interrupt=interrupt)
    try:
        with watchdog.over(lambda: "checking the run before it begins", BUILDING_GRACES):
            yield
    except TimeLimitError as error:
        raise UserError(one_line(error)) from error


def _with_device(config: Config, checked: Checked, found: CheckedModel | None) -> Checked:
    if checked.wrong_input or checked.unsupported:
        return checked
    assert found is not None
    device = resolve_device(config.device)
    if unsupported := unsupported_reason(config.precision, device):
        return replace(checked, unsupported=unsupported)
    try:
        checked = with_precision(config, device, checked, found)
    except UserError as error:
        return Checked(wrong_input=str(error))
    return checked if checked.unsupported else _with_size(config, device, checked)


def _with_size(config: Config, device: torch.device, checked: Checked) -> Checked:
    sentence = too_large(config, device, checked)
    is_refused = sentence is not None and config.predict.must_fit
    return replace(checked, too_large=sentence, wrong_input=sentence if is_refused else None)
