"""The prediction of a workload: every precision mode traced on a fake device and compared."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import MODES, arm_of, outside_differences, with_effect
from ampsweep.config.schema import Config, PrecisionConfig, component_name
from ampsweep.memory_categories import memory_key
from ampsweep.precision.precision import precision_class
from ampsweep.predict.calibrations import why_not_timed
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.memory_by_batch_size import Interpolation, LargestBatch, MemoryByBatchSize, saves_from
from ampsweep.predict.run_prediction import as_prediction, as_user_error, time_on, world_size_of
from ampsweep.predict.step_memory import StepMemory, fits, step_memory
from ampsweep.predict.target_device import TargetDevice, resolve_target, target_of
from ampsweep.records import RunRecord, now
from ampsweep.records.sections import MemoryUse, UnvouchedOperator
from ampsweep.run.directories import new_directory
from ampsweep.run.request import new_record
from ampsweep.speed.devices import Device
from ampsweep.speed.predicted_range import PredictedRange
from ampsweep.speed.step_time import StepWork
from ampsweep.text import GIB

_MOST_RANKS: Final = 1024


@dataclass(frozen=True)
class TracedWork:
    """The work of a step at the configured batch size and at the largest that fits, and what figures follow from."""

    step: StepWork
    at_largest: StepWork | None  # None if not even one item fits
    largest: int  # the largest batch size that fits
    unit: Literal["tokens", "samples"]
    units_per_item: int  # tokens or samples that a step trains on, on all ranks, for each item of a batch
    reading_ms: float  # in which one process on this machine's CPU reads what a rank needs for a step
    num_steps: int  # of the training

    def per_sec(self, step_ms: PredictedRange, batch_size: int) -> PredictedRange:
        return step_ms.of(1e3 * self.units_per_item * batch_size / step_ms.expected)


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
    work: TracedWork | None = None  # what it computes; None unless the target is a GPU by name

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
        return tuple(operator for arm in self.arms for operator in arm.memory.unvouched)


def predict(configs: Sequence[Config], gpus: Sequence[Device] = ()) -> list[WorkloadPrediction]:
    """Predict the memory of configs that differ in precision only, on each of these GPUs also their work, or on the
    target of the config; UserError as `predict_arm`, or if autocast refuses the model in every arm."""
    first = configs[0]
    targets = [*map(target_of, gpus)] or [resolve_target(first.predict, first.device)]
    lacking = [{target: _why_not(config.precision, target) for target in targets} for config in configs]
    possible = [[target for target, reason in reasons.items() if reason is None] for reasons in lacking]
    found = _predict_all(configs, possible)
    outcomes = [outcome for of_targets in found for outcome in of_targets.values()]
    if outcomes and not any(isinstance(outcome, ArmPrediction) for outcome in outcomes):
        raise UserError(f"model={component_name(first.model)}: {outcomes[0]}")
    by_arm = {arm_of(config): {**why, **of} for config, why, of in zip(configs, lacking, found, strict=True)}
    return [_on_target(target, {arm: of[target] for arm, of in by_arm.items()}) for target in targets]


def _why_not(precision: PrecisionConfig, target: TargetDevice) -> str | None:
    """The reason why a target cannot run a mode, or a GPU cannot do so with its own kernels."""
    mode = precision_class(precision)
    reason = mode.missing_ability(precision, target.abilities)
    if reason is not None or target.gpu is None:
        return reason
    return mode.why_emulated(precision, target.abilities) or why_not_timed(target.gpu, precision)


def _on_target(target: TargetDevice, found: Mapping[str, "ArmPrediction | str | None"]) -> WorkloadPrediction:
    arms = [arm for arm in found.values() if isinstance(arm, ArmPrediction)]
    unsupported = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    baseline = next((arm for arm in arms if arm.arm == arm.config.report.baseline), None)
    name = baseline.arm if baseline is not None and len(arms) > 1 else None
    compared = tuple(arm if baseline is None else _against(baseline, arm) for arm in arms)
    return WorkloadPrediction(target, compared, unsupported, name)


def predict_arm(config: Config, targets: Sequence[TargetDevice]) -> dict[TargetDevice, ArmPrediction]:
    """Predict a training for the first of these targets, and for those of the others on which its step is the same;
    UserError if a part refuses its settings or the model cannot be traced, UnsupportedError if the target's autocast
    refuses an operator of the model."""
    if config.parallel.strategy != "single" and targets[0].gpu is None:
        return {targets[0]: _predict_rank(config, targets[0])}
    target, *others = targets
    with as_user_error(config):
        training = FakeTraining(config, target, world_size_of(config), 0, *others)
        memory = MemoryByBatchSize(training.trace, training.has_batch, target, config.data["batch_size"])
    arms = {}
    for memory.target in training.alike:
        arms[memory.target] = _arm_on_target(config, training, memory)
    return arms


def _arm_on_target(config: Config, training: FakeTraining, memory: MemoryByBatchSize) -> ArmPrediction:
    batch_size: int = config.data["batch_size"]
    target, limit = memory.target, memory.target.memory_limit(config.predict)
    emulated = precision_class(config.precision).why_emulated(config.precision, target.abilities)
    sizes = [] if target.gpu is not None else config.predict.batch_sizes or _table_sizes(batch_size)
    largest = None
    if limit is not None and emulated is None:
        largest = memory.largest(limit, traces=target.gpu is None)
    return ArmPrediction(
        config,
        training.model_size,
        memory.at(batch_size),
        tuple(memory.at(size) for size in sizes if memory.interpolation or training.has_batch(size)),
        largest,
        memory.interpolation,
        world_size_of(config),
        emulated=emulated,
        work=None if target.gpu is None or largest is None else _work(training, memory, largest.batch_size),
    )


def _work(training: FakeTraining, memory: MemoryByBatchSize, largest: int) -> TracedWork:
    trainer, of = training.trainer, training.trainer.config
    num_batches, tokens = of.grad_accum_steps * len(trainer.turns), trainer.data.tokens_per_batch
    return TracedWork(
        StepWork(memory.works(training.config.data["batch_size"]), compiled=of.compile),
        StepWork(memory.works(largest), compiled=of.compile) if largest else None,
        largest,
        "tokens" if tokens else "samples",
        num_batches * world_size_of(training.config) * ((tokens or 0) // trainer.data.batch_size or 1),
        training.reading_ms * num_batches,
        trainer.num_steps,
    )


def _predict_rank(config: Config, target: TargetDevice) -> ArmPrediction:
    """Predict the memory of a training's fullest rank, the first: no shard is larger."""
    batch_size: int = config.data["batch_size"]
    is_sharded = config.parallel.strategy == "fsdp2"
    world_size, limit = world_size_of(config), target.memory_limit(config.predict)
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
        fewest = number if fits(step, target, limit) else None
        number *= 2
    arm = ArmPrediction(config, training.model_size, by_world_size[world_size], (), None, None, world_size)
    by_number = dict(sorted(by_world_size.items()))
    return replace(arm, by_world_size=by_number, fewest=None if limit is None else fewest or 0)


def _predict_all(
    configs: Sequence[Config], targets: Sequence[Sequence[TargetDevice]]
) -> list[dict[TargetDevice, ArmPrediction | str]]:
    """Predict each config on its targets; a refusal by autocast is a sentence instead. Arms with equal memory settings
    are traced once, in parallel where that is safe."""
    kinds = [str(_memory_settings(config)) for config in configs]
    todo: dict[str, tuple[Config, dict[TargetDevice, None]]] = {}
    for kind, config, of in [*zip(kinds, configs, targets, strict=True)][::-1]:  # float8 first: it takes longest
        if of:
            todo.setdefault(kind, (config, {}))[1].update(dict.fromkeys(of))
    # A fork has torch imported already; it is safe if no other thread could hold a lock.
    can_fork = sys.platform == "linux" and threading.active_count() == 1 and not _autograd_has_threads()
    workers = min(len(todo), len(os.sched_getaffinity(0))) if can_fork else 1
    if workers > 1:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            found = dict(zip(todo, pool.map(_predicted_or_refused, *zip(*todo.values(), strict=True)), strict=True))
    else:
        found = {kind: _predicted_or_refused(*job) for kind, job in todo.items()}
    return [
        {target: arm if isinstance(arm := found[kind][target], str) else replace(arm, config=config) for target in of}
        for kind, config, of in zip(kinds, configs, targets, strict=True)
    ]


def _autograd_has_threads() -> bool:
    """Return True if a CUDA build of torch has run backward in this process, so that no fork can run it again."""
    return any(path.read_text().startswith("pt_autograd") for path in Path("/proc/self/task").glob("*/comm"))


def _predicted_or_refused(config: Config, targets: Iterable[TargetDevice]) -> dict[TargetDevice, ArmPrediction | str]:
    found: dict[TargetDevice, ArmPrediction | str] = {}
    try:
        while left := [target for target in targets if target not in found]:
            found |= predict_arm(config, left)
    except UnsupportedError as refusal:  # CUDA's autocast is the same on all
        return dict.fromkeys(targets, str(refusal))
    return found


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
    time = time_on(target.gpu, arm.config, arm.work.step) if target.gpu is not None and arm.work is not None else None
    record.prediction = as_prediction(memory, target, arm.curve, time)
    return record
