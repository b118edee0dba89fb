"""A directory of runs as a sweep leaves it: 1,000 logged steps each, 4 arms by 5 batch sizes by 5 seeds a model.

python tests/benchmarks/report_tree.py DIRECTORY NUM_RUNS
"""

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ampsweep.config.compose import compose_points
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config
from ampsweep.memory_categories import MEMORY_CATEGORIES, memory_key
from ampsweep.monitors.environment import environment
from ampsweep.record import HISTORY_NAME, RunRecord, history_line
from ampsweep.record.digests import digest_of
from ampsweep.record.sections import Attempt, Contamination, MemoryUse, ModeProof
from ampsweep.run.request import new_record

NUM_ROWS = 1000
LOG_EVERY = 10
EVAL_EVERY = 10  # rows
ARMS = {"fp32": 1.0, "tf32": 0.7, "amp_bf16": 0.55, "amp_fp16": 0.5, "pure_bf16": 0.45}
"""Precision mode -> step time, as share of the baseline's."""
SWEPT_ARMS = tuple(ARMS)[:4]
BATCH_SIZES = (8, 16, 32, 64, 128)
NUM_SEEDS = 5
RUNS_PER_MODEL = len(SWEPT_ARMS) * len(BATCH_SIZES) * NUM_SEEDS


def points(num_runs: int) -> Iterator[Config]:
    """The configs of the tree's first `num_runs` runs; those of a smaller tree are the first of a larger one."""
    overrides = ["model=gpt_tiny", f"trainer.steps={NUM_ROWS * LOG_EVERY}", f"trainer.log_every={LOG_EVERY}"]
    base = compose_points(overrides, multirun=False).points[0].config
    models = [{**base.model, "name": f"gpt_{width}", "hidden_size": width} for width in range(128, 128 * 1000, 128)]
    grid = itertools.product(models, BATCH_SIZES, range(NUM_SEEDS), SWEPT_ARMS)
    for model, batch_size, seed, arm in itertools.islice(grid, num_runs):
        data = {**base.data, "batch_size": batch_size}
        yield replace(base, model=model, data=data, seed=seed, precision=PRECISION_MODES[arm])


def write_runs(directory: Path, num_runs: int) -> None:
    """Write those of the first `num_runs` runs that `directory` lacks."""
    facts = environment(torch.device("cpu"))
    for number, config in enumerate(points(num_runs)):
        place = directory / run_directory_name(config)
        if not place.exists():
            place.mkdir(parents=True)
            record = training(place, config, facts, np.random.default_rng(number), NUM_ROWS)
            record.write(place)


def training(
    place: Path, config: Config, facts: dict[str, object], rng: np.random.Generator, num_rows: int
) -> RunRecord:
    """Write a training's history of `num_rows` rows; return its record."""
    hidden, batch_size, arm = config.model["hidden_size"], config.data["batch_size"], config.precision.mode
    step_ms = 0.02 * hidden / 128 * batch_size * ARMS[arm] * (1 + 0.01 * rng.normal())
    columns = _history(config, step_ms, rng, num_rows)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for index, row in enumerate(rows):
        if (index + 1) % EVAL_EVERY:
            del row["val/loss"]
    content = "".join(map(history_line, rows)).encode()
    (place / HISTORY_NAME).write_bytes(content)
    record = new_record(
        config, device="cuda:0", device_name="a GPU", steps=num_rows * LOG_EVERY, model_size=12 * hidden**2
    )
    _measured(record, columns, step_ms, facts)
    record.history_digest = digest_of(content)
    return record


def _history(config: Config, step_ms: float, rng: np.random.Generator, num_rows: int) -> dict[str, list[float]]:
    steps = LOG_EVERY * np.arange(1, num_rows + 1)
    loss = 2 + 0.01 * (config.seed % 100) + 4 * np.exp(-steps / 2000)
    times = step_ms * (1 + 0.05 * rng.random(num_rows))
    batch_size = config.data["batch_size"]
    columns = {
        "train/lr": 1e-3 * np.cos(steps / steps[-1] * math.pi / 2),
        "train/loss": loss + 0.05 * rng.normal(size=num_rows),
        "train/grad_norm": np.exp(0.3 * rng.normal(size=num_rows)),
        "perf/step_ms": times,
        "perf/data_wait_ms": 0.02 * times * rng.random(num_rows),
        "perf/samples_per_sec": 1000 * batch_size / times,
        "perf/tokens_per_sec": 64_000 * batch_size / times,
        "perf/tflops_per_sec": 20 / times,
        "perf/mfu_pct": 200 / times,
        "instrumentation/overhead_pct": 0.5 + rng.random(num_rows),
        "device/power_w": 300 + 20 * rng.normal(size=num_rows),
        "device/energy_j": 0.3 * LOG_EVERY * np.cumsum(times),
        "device/utilization_pct": 90 + 10 * rng.random(num_rows),
        "val/loss": loss + 0.01 * rng.normal(size=num_rows),
    }
    if config.precision.grad_scaler:
        columns["amp/scale"] = 65536.0 * 2.0 ** rng.integers(-2, 3, size=num_rows)
        columns["amp/skipped_steps"] = np.cumsum(rng.random(num_rows) < 0.01).astype(float)
    return {"step": steps.tolist()} | {key: values.tolist() for key, values in columns.items()}


def _measured(record: RunRecord, columns: dict[str, list[float]], step_ms: float, facts: dict[str, object]) -> None:
    """What a completed run's record holds beside its config."""
    half = record.identity.dtype in ("float16", "bfloat16")
    weights, activations = record.identity.model_size * 4, 2**20 * record.identity.batch_size
    peak = dict.fromkeys(MEMORY_CATEGORIES, 2**16) | {
        "parameters": weights,
        "gradients": weights,
        "optimizer_state": 2 * weights,
        "activations": activations // 2 if half else activations,
        "autocast_weights": weights // 2 if half else 0,
    }
    total = sum(peak.values())
    last = {key: values[-1] for key, values in columns.items() if key != "step"}
    categories = {memory_key(category): size / 2**30 for category, size in peak.items()}
    peaks = {"memory/peak_allocated_gib": total / 2**30, "memory/peak_reserved_gib": 1.1 * total / 2**30}
    record.status = "completed"
    record.ended_at = record.started_at
    record.summary = {**last, "perf/step_ms": step_ms, **categories, **peaks, "device/temperature_c": 60.0}
    record.memory = MemoryUse(peak_bytes=total, peak=peak, end_of_forward=peak, kept={})
    record.environment = facts
    record.proof = ModeProof(
        num_operators=400,
        flops={record.identity.dtype: 10**9, "float32": 10**6},
        outputs={record.identity.dtype: 200, "float32": 200, "int64": 12},
    )
    record.contamination = Contamination(verdict="clean", reasons=[])
    record.attempts = [Attempt(started_at=record.started_at, host="here", pid=1, from_step=0)]


if __name__ == "__main__":
    write_runs(Path(sys.argv[1]), int(sys.argv[2]))
