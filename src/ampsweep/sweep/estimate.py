"""Time a few steps and an evaluation of runs on their device."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.data.base import Data, stop_workers
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.observe.memory_limit import is_out_of_memory
from ampsweep.sweep.preflight import RunTime
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data
from ampsweep.training.components.device import run_devices
from ampsweep.training.trainer import Trainer

_TIMED_STEPS = 3
_PER_KIND_S = 10.0  # the longest time for the steps of one kind; one step is always timed


def time_runs(configs: Sequence[Config], stop: StopRequest) -> list[RunTime | None]:
    """Time the runs' steps and evaluations; None if the device ran out of memory. Seeds share a measurement."""
    measured: dict[str, RunTime | None] = {}
    keys = [config_hash(replace(config, seed=0)) for config in configs]
    for key, config in zip(keys, configs, strict=True):
        if key not in measured and not stop.requested:
            measured[key] = _measure(config)
    return [measured.get(key) for key in keys]


def _measure(config: Config) -> RunTime | None:
    taken = run_devices(config.device)[0]
    taken.occupy()
    device = taken.device
    data: Data | None = None
    try:
        data = build_data(config, device)
        built = build(config, device, data)
        trainer = assemble_trainer(config, built, device)
        with built.precision.flags():
            built.model.train()
            step_s = _seconds_per_step(trainer, device)
            eval_s = _seconds(trainer.evaluate, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        stop_workers(data)
    return RunTime(step_s, eval_s, built.num_steps)


def _seconds_per_step(trainer: Trainer, device: torch.device) -> float:
    """Return the median of a few steps after the first, or the first step's time if it was slow."""
    first = _seconds(trainer.train_step, device)
    if first > _PER_KIND_S / _TIMED_STEPS:
        return first
    return statistics.median(_seconds(trainer.train_step, device) for _ in range(_TIMED_STEPS))


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - began
