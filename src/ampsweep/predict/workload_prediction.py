"""The prediction of a workload: every precision mode traced on a fake device, with answers that compare them."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import MODES, arm_of, outside_differences, with_effect
from ampsweep.config.schema import Config, PrecisionConfig, component_name
from ampsweep.memory_categories import memory_key
from ampsweep.precision.precision import precision_class
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.memory_by_batch_size import Interpolation, LargestBatch, MemoryByBatchSize, saves_from
from ampsweep.predict.run_prediction import as_prediction, as_user_error, world_size_of
from ampsweep.predict.step_memory import StepMemory, fits, step_memory
from ampsweep.predict.target_device import TargetDevice, resolve_target
from ampsweep.record import RunRecord, now
from ampsweep.record.parts import MemoryUse, UnvouchedOperator
from ampsweep.run.directories import new_directory
from ampsweep.run.request import new_record
from ampsweep.text import GIB

_MOST_RANKS: Final = 1024


@dataclass(frozen=True)
class FewestRanks:
    """The smallest power of two that is a number of ranks on which each has enough memory."""

    world_size: int | None
    """None where 1,024 are not enough."""


@dataclass(frozen=True)
class ArmPrediction:
    """The prediction of one arm: its memory at the configured batch size and at others, and what follows."""

    config: Config
    model_size: int
    memory: StepMemory
    curve: tuple[StepMemory, ...]
    largest: LargestBatch | None
    """The largest batch that fits; None where it was not asked for, or the target emulates the mode."""
    interpolation: Interpolation | None
    world_size: int = 1
    """Number of ranks; all memory is that of the fullest."""
    by_world_size: Mapping[int, StepMemory] = field(default_factory=dict)
    """The memory on each number of ranks that was traced; empty where there is one process."""
    fewest: FewestRanks | None = None
    """None where it was not asked for, or there is one process."""
    emulated: str | None = None
    """The reason why the target emulates the mode, so that the memory is that of an emulation; None: it does not."""
    against_baseline: Literal["baseline", "unknown", "saves", "saves_not"] = "unknown"
    """`saves`: from some batch size on; `saves_not`: it never takes less."""
    saves_from: int | None = None
    """The batch size from which on it saves."""

    @property
    def arm(self) -> str:
        """The canonical label of its precision."""
        return arm_of(self.config)


@dataclass(frozen=True)
class WorkloadPrediction:
    """The predictions of all arms of one workload."""

    target: TargetDevice
    arms: tuple[ArmPrediction, ...]
    unsupported: dict[str, str]
    """Arms that the target cannot run, or whose model its autocast refuses, with the reason."""
    baseline: str | None
    """None where there is none to compare with."""

    @property
    def unvouched(self) -> tuple[UnvouchedOperator, ...]:
        """The operators that some arm's prediction does not vouch for, each once."""
        called = {(one.name, one.doubt): one for arm in self.arms for one in arm.memory.unvouched}
        return tuple(called[key] for key in sorted(called))


def predict(configs: Sequence[Config]) -> WorkloadPrediction:
    """Predict the memory of configs that differ in precision only.

    Raises:
        UserError: a part refuses its settings, a model cannot be traced, or autocast refuses it in every arm.
    """
    first = configs[0]
    target = resolve_target(first.predict, first.device)
    unsupported = {
        arm_of(config): reason
        for config in configs
        if (reason := precision_class(config.precision).missing_ability(config.precision, target.abilities))
    }
    todo = [config for config in configs if arm_of(config) not in unsupported]
    found = _predict_all(todo, target)
    arms = tuple(arm for arm in found if isinstance(arm, ArmPrediction))
    refused = {arm_of(config): one for config, one in zip(todo, found, strict=True) if isinstance(one, str)}
    if refused and not arms:
        raise UserError(f"model={component_name(first.model)}: {next(iter(refused.values()))}")
    unsupported |= refused
    baseline = next((arm for arm in arms if arm.arm == first.report.baseline), None)
    name = baseline.arm if baseline is not None and len(arms) > 1 else None
    compared = tuple(arm if baseline is None else _against(baseline, arm) for arm in arms)
    return WorkloadPrediction(target, compared, unsupported, name)


def predict_arm(config: Config, target: TargetDevice) -> ArmPrediction:
    """Predict the memory of one training.

    Raises:
        UserError: a part refuses its settings, or the model cannot be traced.
        UnsupportedError: the target's autocast refuses an operator of the model.
    """
    if config.parallel.strategy != "single":
        return _predict_rank(config, target)
    batch_size: int = config.data["batch_size"]
    with as_user_error(config):
        training = FakeTraining(config, target)
        memory = MemoryByBatchSize(training.trace, training.has_batch, target, batch_size)
    limit = config.predict.memory_gib
    emulated = precision_class(config.precision).why_emulated(config.precision, target.abilities)
    sizes = config.predict.batch_sizes or _table_sizes(batch_size)
    return ArmPrediction(
        config,
        training.model_size,
        memory.at(batch_size),
        tuple(memory.at(size) for size in sizes if memory.interpolation or training.has_batch(size)),
        None if limit is None or emulated is not None else memory.largest(round(limit * GIB)),
        memory.interpolation,
        emulated=emulated,
    )


def _predict_rank(config: Config, target: TargetDevice) -> ArmPrediction:
    """Predict the memory of a training's fullest rank: the first, as no shard is larger than its."""
    batch_size: int = config.data["batch_size"]
    is_sharded = config.parallel.strategy == "fsdp2"
    world_size, limit = world_size_of(config), config.predict.memory_gib
    with as_user_error(config):
        training = FakeTraining(config, target, world_size)
        step = training.trace(batch_size)
    by_world_size = {world_size: step_memory(step, target, batch_size)}
    fewest = None
    number = 2
    while limit is not None and fewest is None and number <= _MOST_RANKS:
        if is_sharded and number != world_size:
            with as_user_error(config):
                step = FakeTraining(config, target, number).trace(batch_size)
            by_world_size[number] = step_memory(step, target, batch_size)
        fewest = number if fits(step, target, round(limit * GIB)) else None
        number *= 2
    return ArmPrediction(
        config,
        training.model_size,
        by_world_size[world_size],
        curve=(),
        largest=None,
        interpolation=None,
        world_size=world_size,
        by_world_size=dict(sorted(by_world_size.items())),
        fewest=None if limit is None else FewestRanks(fewest),
    )


def _predict_all(configs: Sequence[Config], target: TargetDevice) -> list[ArmPrediction | str]:
    """Predict the arms in order, or return why autocast refuses one.

    Arms that take the same bytes are traced once, in parallel where that is safe.
    """
    kinds = [_memory_settings(config) for config in configs]
    chosen = {str(kind): config for kind, config in zip(kinds, configs, strict=True)}
    trace = partial(_predicted_or_refused, target=target)
    # A fork has torch imported already, and is safe where no other thread could hold a lock.
    can_fork = sys.platform == "linux" and threading.active_count() == 1 and not _autograd_has_threads()
    workers = min(len(chosen), len(os.sched_getaffinity(0))) if can_fork else 1
    if workers > 1:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            found = dict(zip(chosen, pool.map(trace, chosen.values()), strict=True))
    else:
        found = {kind: trace(config) for kind, config in chosen.items()}
    arms = [found[str(kind)] for kind in kinds]
    return [arm if isinstance(arm, str) else replace(arm, config=of) for arm, of in zip(arms, configs, strict=True)]


def _autograd_has_threads() -> bool:
    """Tell whether a CUDA build of torch has taken a backward pass in this process: no fork of it can take another."""
    return any(path.read_text().startswith("pt_autograd") for path in Path("/proc/self/task").glob("*/comm"))


def _predicted_or_refused(config: Config, target: TargetDevice) -> ArmPrediction | str:
    try:
        return predict_arm(config, target)
    except UnsupportedError as refusal:
        return str(refusal)


def _memory_settings(config: Config) -> tuple[PrecisionConfig, dict[str, str]]:
    """The settings of an arm that decide how many bytes a step takes, with the rest at their defaults."""
    precision = with_effect(config.precision)
    own = MODES.get(precision.mode)
    stock = PrecisionConfig(mode="" if own is None or own.implementation is None else precision.mode)
    names = ("parameters", "autocast", "cache_enabled", "grad_scaler", "fp32_modules")
    kept = {name: getattr(precision, name) for name in names}
    settings = replace(stock, dtype=precision.dtype if precision.autocast else stock.dtype, **kept)
    return settings, outside_differences(config)


def _table_sizes(batch_size: int) -> list[int]:
    """Batch sizes for the table: powers of two up to a few times the configured one, and that one itself."""
    most = max(4 * batch_size, 8)
    sizes = {2**power for power in range(1, most.bit_length()) if 2**power <= most} | {batch_size}
    return sorted(sizes)[-8:]


def _against(baseline: ArmPrediction, arm: ArmPrediction) -> ArmPrediction:
    """The arm's prediction with what it takes against the baseline, as far as that can be told."""
    if arm.fewest is not None or arm.emulated is not None:
        return arm
    if arm is baseline:
        return replace(arm, against_baseline="baseline")
    if baseline.interpolation is None or arm.interpolation is None:
        return arm
    start = saves_from(baseline.interpolation, arm.interpolation)
    return replace(arm, against_baseline="saves_not" if start is None else "saves", saves_from=start)


def write_records(prediction: WorkloadPrediction) -> Path:
    """Write a record for each arm below the config's `output_dir`; returns their directory.

    Raises:
        UserError: they cannot be written.
    """
    parent = new_directory(prediction.arms[0].config)
    for arm in prediction.arms:
        directory = parent / run_directory_name(arm.config)
        directory.mkdir()
        predicted_record(arm, prediction.target).write(directory)
    return parent


def predicted_record(arm: ArmPrediction, target: TargetDevice) -> RunRecord:
    """The record of an arm that was predicted only, with its figures under the keys of a measured one."""
    record = new_record(
        arm.config,
        device=target.kind,
        device_name=target.name,
        model_size=arm.model_size,
        world_size=arm.world_size,
    )
    memory = arm.memory
    record.kind, record.status, record.ended_at = "predicted", "completed", now()
    record.memory = MemoryUse(peak_bytes=memory.peak_bytes, peak=memory.peak, end_of_forward=memory.end_of_forward)
    record.summary = {memory_key(category): num_bytes / GIB for category, num_bytes in memory.peak.items()}
    record.summary["memory/peak_allocated_gib"] = memory.total_bytes / GIB
    if memory.allocated_bytes is not None and memory.reserved_bytes is not None:
        record.summary["memory/peak_reserved_gib"] = memory.reserved_bytes / GIB
        record.memory.allocator_peak_bytes = memory.allocated_bytes
        record.memory.unattributed_bytes = memory.allocated_bytes - memory.peak_bytes
    record.prediction = as_prediction(memory, target, arm.curve)
    return record
