"""Check runs before they start, with torch, the device and the user's files."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.identity import training_hash
from ampsweep.config.modes import arm_of
from ampsweep.config.schema import COMPONENTS, Config, component_name
from ampsweep.data.base import Data
from ampsweep.launch.device_lock import check_lock
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.launch.watchdog import TimeLimitError, Watchdog, interrupt_main_thread
from ampsweep.monitors.contamination import UseBeforeRun
from ampsweep.observe.feeding import feeding
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.model_support import check_fit, unused
from ampsweep.parallel.rank_environment import RankPlace, place_in
from ampsweep.precision.precision import unsupported_reason
from ampsweep.recorder.out_of_memory import out_of_memory
from ampsweep.run.directories import checkpoint_path
from ampsweep.run.lifecycle import BUILDING_GRACES, PreparedRun
from ampsweep.run.rank import num_processes
from ampsweep.sweep.device_checks import check_limits, check_precision, emulated, too_large
from ampsweep.sweep.model_check import CheckedModel, check_model
from ampsweep.sweep.preflight import Checked
from ampsweep.text import one_line
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.training.checkpoint import CheckpointError, require_same_model
from ampsweep.training.components.built import build_data, build_model, steps_of
from ampsweep.training.components.device import RunDevice, resolve_device, run_devices
from ampsweep.training.components.instantiate import locate
from ampsweep.training.components.learning_rates import check_rates
from ampsweep.training.components.optimizer import rehearse_optimizers
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.turns import trained_parts
from ampsweep.training.validation_watch import ValidationWatch

_Result = TypeVar("_Result")


def check_runs(
    configs: Sequence[Config], elsewhere: bool, *, send: Callable[[object], None], stop: StopRequest
) -> list[Checked]:
    """Check every config; `send` gets the name of what is checked next. For runs `elsewhere`, on a machine with other
    devices, skip the checks of the device."""
    checks = _Checks(elsewhere, send, stop)
    return [checks.of(config) for config in configs]


class _Checks:
    """The checks of a sweep in stages; each stage runs once for all configs that share its settings."""

    def __init__(self, elsewhere: bool, send: Callable[[object], None], stop: StopRequest) -> None:
        self._elsewhere, self._send, self._stop = elsewhere, send, stop
        self._done: dict[str, Any] = {}  # results of stages, or their errors

    def of(self, config: Config) -> Checked:
        shared = [config.model, config.data, config.task, config.trainer, config.max_batch]
        shared += [config.device, config.precision.fp32_modules]
        trained = [*shared, config.optimizer, config.scheduler, config.precision.parameters]
        workload = [*trained, training_hash(replace(config, seed=0))]  # without the tracking
        checked = Checked()
        try:
            checked, found = self._once(config, lambda: self._parts(config), "parts", *shared)
            here = torch.device("cpu") if self._elsewhere else resolve_device(config.device)
            self._once(config, lambda: _check_optimizer(config, here, found, checked), "optimizer", *trained)
            if config.begins_elsewhere and (path := checkpoint_path(config)) is not None:
                begins = (config.resume, config.model, config.data, config.parallel)
                self._once(config, lambda: check_checkpoint(config, path), "checkpoint", *begins)
            fits = self._once(config, lambda: self._on_device(config, here, found, checked), "device", *workload)
        except UnsupportedError as error:
            return replace(checked, unsupported=str(error))
        except ValueError as error:
            return Checked(wrong_input=str(error))
        leaves_out = config.report.decide and not self._elsewhere
        return replace(checked, too_large=fits, emulated=emulated(config, here) if leaves_out else None)

    def _parts(self, config: Config) -> tuple[Checked, CheckedModel]:
        self._send(f"model={component_name(config.model)} with data={component_name(config.data)}")
        if not self._elsewhere:
            for run_device in run_devices(config.device):
                check_lock(str(run_device))
            check_limits(config, resolve_device(config.device))
        return _check_parts(config, _checked_data(config, torch.device("cpu")))

    def _on_device(self, config: Config, here: torch.device, found: CheckedModel, checked: Checked) -> str | None:
        if config.parallel.strategy != "single":
            check_ranks(config, found, place_in())
        if self._elsewhere:
            return None
        check_precision(config, here, found.model)
        return too_large(config, here, checked)

    def _once(self, config: Config, stage: Callable[[], _Result], *key: object) -> _Result:
        """Return the stage's result, or raise its error, for configs with the same key."""
        name = json.dumps(key, sort_keys=True, default=vars)
        if name not in self._done:
            try:
                with _watched(config, self._stop.interrupt):
                    self._done[name] = stage()
            except ValueError as error:
                self._done[name] = error
        done: _Result | ValueError = self._done[name]
        if isinstance(done, ValueError):
            raise done
        return done


def check_single_run(config: Config, taken: RunDevice) -> tuple[PreparedRun, Checked]:
    """Check a single run on its device, which this process has locked, and build its data there.

    Raises UserError if a part refuses its settings, or the device does not support the mode, unless a W&B agent started
    the run: then its sweep goes on.
    """
    device = taken.device
    unsupported = unsupported_reason(config.precision, device)
    if unsupported is not None and not is_agents_run():
        raise UserError(f"precision={arm_of(config)}: {unsupported}")
    check_limits(config, device)
    limit = MemoryLimit(device, config.trainer.memory_limit_gib)
    prepared = PreparedRun(taken, limit, UseBeforeRun(device), unsupported)
    try:
        with limit, _watched(config):
            data = _checked_data(config, device)
    except (RuntimeError, MemoryError, OSError) as error:
        oom = out_of_memory(error, device, limit)
        if oom is None:
            raise
        return replace(prepared, oom=oom), Checked(unsupported=unsupported)  # the run will end with it
    with _watched(config):
        parts, found = _check_parts(config, data)
        _check_optimizer(config, device, found, parts)
    try:
        check_precision(config, device, found.model)
    except UnsupportedError as error:
        if not is_agents_run():
            raise UserError(f"precision={arm_of(config)}: {error}") from error
        unsupported = unsupported or str(error)
    checked = replace(parts, unsupported=unsupported)
    if unsupported is None:
        checked = replace(checked, too_large=too_large(config, device, parts))
    return replace(prepared, data=data, unsupported=unsupported), checked


def check_checkpoint(config: Config, path: Path) -> None:
    """Check that `path` is a checkpoint of the config's model, or the directory of a run with a checkpoint. UserError:
    it is missing, damaged or of another model, or the ranks cannot continue at its place in the data."""
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


def _check_parts(config: Config, data: Data) -> tuple[Checked, CheckedModel]:
    found = check_model(config, data)
    num_parameters = sum(parameter.numel() for parameter in found.model.parameters())
    num_steps = steps_of(config, data, len(found.turns))
    return Checked(num_steps=num_steps, num_parameters=num_parameters, output_bytes=found.output_bytes), found


def _check_optimizer(config: Config, device: torch.device, found: CheckedModel, checked: Checked) -> None:
    assert checked.num_steps is not None
    trains = trained_parts(found.turns)
    optimizers = rehearse_optimizers(config.optimizer, found.model, trains, precision=config.precision, device=device)
    check_rates(config.scheduler, [*optimizers.values()], checked.num_steps)
    ValidationWatch(config, [*optimizers.values()])  # refuses the settings of a plateau


def _checked_data(config: Config, device: torch.device) -> Data:
    """Build the data set; validate all of it if its class can."""
    for group in COMPONENTS:
        if "_target_" in getattr(config, group):
            locate(group, getattr(config, group))
    data = build_data(config, device)
    if (validate := getattr(data, "validate", None)) is not None:
        try:
            with feeding():
                validate()
        except ValueError as error:
            raise UserError(f"data={component_name(config.data)}: {error}") from error
    return data


def check_ranks(config: Config, found: CheckedModel, place: RankPlace | None) -> None:
    """Raise ValueError with a sentence if the model cannot be trained on the ranks (of torchrun at `place`)."""
    parallel = config.parallel
    if place is None:
        num_processes(parallel, config.device)
    device = resolve_device(config.device)
    check_fit(found.model, parallel, config.precision, device.type, in_parts=found.in_parts)
    if parallel.strategy == "ddp" and not found.in_parts and found.calls_model and not parallel.find_unused_parameters:
        for name in found.unused:
            raise UnsupportedError(f"parallel=ddp: {unused(name)}")
    if parallel.strategy == "fsdp2" and not (found.in_parts or found.calls_model):
        raise UserError(
            f"parallel=fsdp2: task={component_name(config.task)} calls parts of the model and not the model "
            "itself, whose call gathers its parameters; use parallel=ddp, or give the task turns"
        )


@contextmanager
def _watched(config: Config, interrupt: Callable[[], bool] = interrupt_main_thread) -> Iterator[None]:
    """Limit the time of a check, which calls the user's own code, like that of building the run."""
    watchdog = Watchdog(config.trainer.max_seconds, config.trainer.grace_seconds, interrupt=interrupt)
    try:
        with watchdog.over(lambda: "checking the run before it begins", BUILDING_GRACES):
            yield
    except TimeLimitError as error:
        raise UserError(one_line(error)) from error
