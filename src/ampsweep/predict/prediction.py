"""Predictions of whole workloads: each arm traced on its fake device, and what follows from that."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ampsweep.config.errors import UserError
from ampsweep.config.modes import PRECISION_MODES, arm_label
from ampsweep.config.resolved import component_name
from ampsweep.config.schema import Config, PrecisionConfig
from ampsweep.precision.support import missing_ability
from ampsweep.predict.answers import Answer
from ampsweep.predict.arm_memory import ArmMemory, LargestBatch, Memory, saves_from
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.kernels import UntraceableError
from ampsweep.predict.measured_training import MeasuredTraining
from ampsweep.predict.target import GIB, Target, resolve_target
from ampsweep.predict.timeline import Interpolation, Timeline
from ampsweep.text import one_line


@dataclass(frozen=True)
class ArmPrediction:
    """One arm: its memory at the configured batch size, and at others."""

    config: Config
    model_size: int
    memory: Memory
    curve: tuple[Memory, ...]
    largest: LargestBatch | None
    """None: not asked."""
    interpolation: Interpolation | None
    is_measured: bool
    """From real steps on the CPU, because values lead through them."""

    @property
    def arm(self) -> str:
        """The canonical label of its precision."""
        return arm_label(self.config.precision)


@dataclass(frozen=True)
class Prediction:
    """The arms of one workload."""

    target: Target
    arms: tuple[ArmPrediction, ...]
    unsupported: dict[str, str]
    """Arms that the target cannot run, with the reason."""
    baseline: str | None
    answers: tuple[Answer, ...]


def predict(configs: Sequence[Config]) -> Prediction:
    """The memory of configs that differ in their precision only.

    Raises:
        UserError: a part refuses its settings, or a model cannot be traced.
    """
    first = configs[0]
    target = resolve_target(first.predict, first.device)
    unsupported = {
        arm_label(config.precision): reason
        for config in configs
        if (reason := missing_ability(config.precision, target.abilities))
    }
    todo = [config for config in configs if arm_label(config.precision) not in unsupported]
    arms = tuple(_predict_all(todo, target))
    baseline = next((arm for arm in arms if arm.arm == first.report.baseline), None)
    answers = tuple(_answer(baseline, arm) for arm in arms)
    name = baseline.arm if baseline is not None and len(arms) > 1 else None
    return Prediction(target, arms, unsupported, name, answers)


def predict_arm(config: Config, target: Target) -> ArmPrediction:
    """The memory of one training.

    Raises:
        UserError: a part refuses its settings, or the model cannot be traced.
    """
    batch_size: int = config.data["batch_size"]
    training, memory, is_measured = _traced(config, target, batch_size)
    limit = config.predict.memory_gib
    largest = None if limit is None else memory.largest(round(limit * GIB))
    sizes = config.predict.batch_sizes or _table_sizes(batch_size, largest)
    return ArmPrediction(
        config,
        training.model_size,
        memory.at(batch_size),
        tuple(memory.at(size) for size in sizes if memory.interpolation or training.has_batch(size)),
        largest,
        memory.interpolation,
        is_measured,
    )


def all_modes(config: Config) -> list[Config]:
    """The config in every precision mode."""
    return [replace(config, precision=precision) for precision in PRECISION_MODES.values()]


class _Training(Protocol):
    @property
    def model_size(self) -> int: ...

    def trace(self, batch_size: int) -> Timeline: ...

    def has_batch(self, batch_size: int) -> bool: ...


def _traced(config: Config, target: Target, batch_size: int) -> tuple[_Training, ArmMemory, bool]:
    training = FakeTraining(config, target)
    try:
        return training, ArmMemory(training.trace, training.has_batch, target, batch_size), False
    except UntraceableError as error:
        name = component_name(config.model)
        if not config.predict.measure:
            raise UserError(f"model={name}: {error}; predict.measure=true measures a small step instead") from error
        if target.kind != "cpu":
            raise UserError(f"model={name}: {error}; a step is measured on the CPU, with predict.target=cpu") from error
        measured = MeasuredTraining(config, training.model_size)
        return measured, ArmMemory(measured.trace, measured.has_batch, target, batch_size=2), True
    except UserError:
        raise
    except Exception as error:  # the user's own model may raise anything
        raise UserError(f"model={component_name(config.model)} cannot be trained so: {one_line(error)}") from error


def _predict_all(configs: Sequence[Config], target: Target) -> Iterator[ArmPrediction]:
    """The arms in their order; those whose steps take the same are traced once, and in parallel where that is sound."""
    kinds = [_memory_settings(config.precision) for config in configs]
    chosen = {str(kind): config for kind, config in zip(kinds, configs, strict=True)}
    trace = partial(predict_arm, target=target)
    # A fork has torch imported already, and is sound where no other thread could hold a lock.
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    workers = min(len(chosen), len(os.sched_getaffinity(0))) if can_fork else 1
    if workers > 1:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            found = dict(zip(chosen, pool.map(trace, chosen.values()), strict=True))
    else:
        found = {kind: trace(config) for kind, config in chosen.items()}
    for kind, config in zip(kinds, configs, strict=True):
        yield replace(found[str(kind)], config=config)


def _memory_settings(precision: PrecisionConfig) -> PrecisionConfig:
    """What of a precision decides which bytes a step takes."""
    stock = PrecisionConfig(mode="")
    kept = {name: getattr(precision, name) for name in ("parameters", "autocast", "cache_enabled", "grad_scaler")}
    return replace(stock, dtype=precision.dtype if precision.autocast else stock.dtype, **kept)


def _table_sizes(batch_size: int, largest: LargestBatch | None) -> list[int]:
    """Powers of two up to a few times the batch size, and those that were asked about."""
    most = max(4 * batch_size, 8)
    sizes = {2**power for power in range(1, most.bit_length()) if 2**power <= most} | {batch_size}
    return sorted(sizes)[-8:]


def _answer(baseline: ArmPrediction | None, arm: ArmPrediction) -> Answer:
    if baseline is None or arm is baseline:
        return Answer(arm.arm, arm.largest, "unknown" if baseline is None else "baseline")
    if baseline.interpolation is None or arm.interpolation is None:
        return Answer(arm.arm, arm.largest)
    if _memory_settings(arm.config.precision) == _memory_settings(baseline.config.precision):
        return Answer(arm.arm, arm.largest, "same")
    start = saves_from(baseline.interpolation, arm.interpolation)
    return Answer(arm.arm, arm.largest, "takes_more" if start is None else "saves", start)
