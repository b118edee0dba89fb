"""The prediction of a workload: every precision mode traced on a fake device and compared."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

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
from ampsweep.records import RunRecord, now
from ampsweep.records.sections import MemoryUse, UnvouchedOperator
from ampsweep.run.directories import new_directory
from ampsweep.run.request import new_record
from ampsweep.text import GIB

_MOST_RANKS: Final = 1024


@dataclass(frozen=True)
class ArmPrediction:
    """The prediction of an arm: its memory at the configured batch size and at others, and the answers."""

    config: Config
    model_size: int
    memory: StepMemory
    curve: tuple[StepMemory, ...]
    largest: LargestBatch | None  # that fits; None if not requested, or if the target emulates the mode
    interpolation: Interpolation | None
    world_size: int = 1  # number of ranks; all memory is that of the fullest
    by_world_size: Mapping[int, StepMemory] = field(default_factory=dict)  # empty for a single process
    fewest: int | None = None
    """The smallest power of two of ranks with enough memory on each, 0 if 1,024 are too few; None if not requested."""
    emulated: str | None = None  # the reason why the target emulates the mode, if it does
    saves_nothing: bool = False  # it takes at least the baseline's memory at any batch size
    saves_from: int | None = None  # the batch size from which on it takes less than the baseline

    @property
    def arm(self) -> str:
        return arm_of(self.config)


@dataclass(frozen=True)
class WorkloadPrediction:
    target: TargetDevice
    arms: tuple[ArmPrediction, ...]
    unsupported: dict[str, str]  # the reason, by arm: the target cannot run it, or its autocast refuses the model
    baseline: str | None  # None without a comparison

    @property
    def unvouched(self) -> tuple[UnvouchedOperator, ...]:
        called = {(operator.name, operator.doubt): operator for arm in self.arms for operator in arm.memory.unvouched}
        return tuple(called[key] for key in sorted(called))


def predict(configs: Sequence[Config]) -> WorkloadPrediction:
    """Predict the memory of configs that differ in precision only; UserError as `predict_arm`, or if autocast refuses
    the model in every arm."""
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
    refused = {arm_of(config): text for config, text in zip(todo, found, strict=True) if isinstance(text, str)}
    if refused and not arms:
        raise UserError(f"model={component_name(first.model)}: {next(iter(refused.values()))}")
    unsupported |= refused
    baseline = next((arm for arm in arms if arm.arm == first.report.baseline), None)
    name = baseline.arm if baseline is not None and len(arms) > 1 else None
    compared = tuple(arm if baseline is None else _against(baseline, arm) for arm in arms)
    return WorkloadPrediction(target, compared, unsupported, name)


def predict_arm(config: Config, target: TargetDevice) -> ArmPrediction:
    """Predict the memory of a training; UserError if a part refuses its settings or the model cannot be traced,
    UnsupportedError if the target's autocast refuses an operator of the model."""
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
    """Predict the memory of a training's fullest rank, the first: no shard is larger."""
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
    arm = ArmPrediction(config, training.model_size, by_world_size[world_size], (), None, None, world_size)
    by_number = dict(sorted(by_world_size.items()))
    return replace(arm, by_world_size=by_number, fewest=None if limit is None else fewest or 0)


def _predict_all(configs: Sequence[Config], target: TargetDevice) -> list[ArmPrediction | str]:
    """Predict the arms in order; a refusal by autocast is a sentence instead. Arms with equal memory settings are
    traced once, in parallel where that is safe."""
    kinds = [_memory_settings(config) for config in configs]
    chosen = {str(kind): config for kind, config in zip(kinds, configs, strict=True)}
    trace = partial(_predicted_or_refused, target=target)
    # A fork has torch imported already; it is safe if no other thread could hold a lock.
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
    """Return True if a CUDA build of torch has run backward in this process, so that no fork can run it again."""
    return any(path.read_text().startswith("pt_autograd") for path in Path("/proc/self/task").glob("*/comm"))


def _predicted_or_refused(config: Config, target: TargetDevice) -> ArmPrediction | str:
    try:
        return predict_arm(config, target)
    except UnsupportedError as refusal:
        return str(refusal)


def _memory_settings(config: Config) -> tuple[PrecisionConfig, dict[str, str]]:
    """The settings of an arm that decide on the bytes of a step, with the rest at their defaults."""
    precision = with_effect(config.precision)
    own = MODES.get(precision.mode)
    stock = PrecisionConfig(mode="" if own is None or own.implementation is None else precision.mode)
    names = ("parameters", "autocast", "cache_enabled", "grad_scaler", "fp32_modules")
    kept = {name: getattr(precision, name) for name in names}
    settings = replace(stock, dtype=precision.dtype if precision.autocast else stock.dtype, **kept)
    return settings, outside_differences(config)


def _table_sizes(batch_size: int) -> list[int]:
    """Batch sizes for the table: powers of two up to four times the configured size, and that size."""
    most = max(4 * batch_size, 8)
    sizes = {2**power for power in range(1, most.bit_length()) if 2**power <= most} | {batch_size}
    return sorted(sizes)[-8:]


def _against(baseline: ArmPrediction, arm: ArmPrediction) -> ArmPrediction:
    if arm is baseline or arm.fewest is not None or arm.emulated is not None:
        return arm
    if baseline.interpolation is None or arm.interpolation is None:
        return arm
    start = saves_from(baseline.interpolation, arm.interpolation)
    return replace(arm, saves_nothing=start is None, saves_from=start)


def write_records(prediction: WorkloadPrediction) -> Path:
    """Write a record for each arm below the config's `output_dir` and return their directory; UserError on failure."""
    parent = new_directory(prediction.arms[0].config)
    for arm in prediction.arms:
        directory = parent / run_directory_name(arm.config)
        directory.mkdir()
        _record(arm, prediction.target).write(directory)
    return parent


def _record(arm: ArmPrediction, target: TargetDevice) -> RunRecord:
    """The record of a predicted arm, with its figures under the keys of a measured arm."""
    memory = arm.memory
    record = new_record(arm.config, device=target.kind, device_name=target.name, world_size=arm.world_size)
    record.identity.model_size = arm.model_size
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
