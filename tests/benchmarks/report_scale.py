"""What `ampsweep report` costs by number of runs: `python tests/benchmarks/report_scale.py`, see README.md.

The runs are as a sweep leaves them: 1,000 logged steps each, 4 arms by 5 batch sizes by 5 seeds a model. JSON goes to
stdout, progress to stderr.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import in_rounds, machine, spread, timed

from ampsweep.config.compose import compose_points
from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config
from ampsweep.memory_categories import MEMORY_CATEGORIES, memory_key
from ampsweep.monitors.environment import environment
from ampsweep.records import HISTORY_NAME, RunRecord, history_line
from ampsweep.records.files import digest_of
from ampsweep.records.sections import Attempt, Contamination, MemoryUse, ModeProof
from ampsweep.run.request import new_record

NUM_ROWS = 1000
LOG_EVERY = 10
EVAL_EVERY = 10  # rows
ARMS = {"fp32": 1.0, "tf32": 0.7, "amp_bf16": 0.55, "amp_fp16": 0.5}
"""Precision mode -> step time, as share of the baseline's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 300, 1000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        results = {num_runs: _measure(Path(place), num_runs, arguments.rounds) for num_runs in sorted(arguments.runs)}
    print(json.dumps({"machine": machine([os.getloadavg()[0]]), "runs": results}, indent=1))


def _measure(directory: Path, num_runs: int, num_rounds: int) -> dict[str, Any]:
    """The command on the first `num_runs` runs, which lie in a directory of their own number."""
    tree = directory / str(num_runs)
    facts = environment(torch.device("cpu"))
    for number, config in enumerate(_points(num_runs)):
        place = tree / run_directory_name(config)
        place.mkdir(parents=True)
        _write_run(place, config, facts, np.random.default_rng(number))
    command = [sys.executable, "-m", "ampsweep.commands.main", "report", str(tree)]
    (rounds,) = in_rounds(num_rounds, [f"{num_runs} runs"], lambda _: timed(command, tree)).values()
    figures = {key: spread([one[key] for one in rounds]) for key in rounds[0]}
    sizes = {f"{path.suffix[1:]}_mib": path.stat().st_size / 2**20 for path in sorted(tree.glob("comparison.*"))}
    return {**figures, **sizes, "rounds": rounds}


def _points(num_runs: int) -> Iterator[Config]:
    """The configs of the first `num_runs` runs."""
    overrides = ["model=gpt_tiny", f"trainer.steps={NUM_ROWS * LOG_EVERY}", f"trainer.log_every={LOG_EVERY}"]
    base = compose_points(overrides, multirun=False).points[0].config
    models = [{**base.model, "name": f"gpt_{width}", "hidden_size": width} for width in range(128, 128 * 1000, 128)]
    for model, batch_size, seed, arm in islice(product(models, (8, 16, 32, 64, 128), range(5), ARMS), num_runs):
        data = {**base.data, "batch_size": batch_size}
        yield replace(base, model=model, data=data, seed=seed, precision=PRECISION_MODES[arm])


def _write_run(place: Path, config: Config, facts: dict[str, object], rng: np.random.Generator) -> None:
    hidden, batch_size = config.model["hidden_size"], config.data["batch_size"]
    step_ms = 0.02 * hidden / 128 * batch_size * ARMS[config.precision.mode] * (1 + 0.01 * rng.normal())
    columns = _history(config, step_ms, rng)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    last = {key: value for key, value in rows[-1].items() if key != "step"}
    for row in rows:
        if row["step"] % (LOG_EVERY * EVAL_EVERY):
            del row["val/loss"]
    content = "".join(map(history_line, rows)).encode()
    (place / HISTORY_NAME).write_bytes(content)
    record = new_record(config, device="cuda:0", device_name="a GPU")
    record.identity.steps, record.identity.model_size = NUM_ROWS * LOG_EVERY, 12 * hidden**2
    record.history_digest = digest_of(content)
    record.summary = {**last, "perf/step_ms": step_ms, "device/temperature_c": 60.0}
    _complete(record, facts)
    record.write(place)


def _history(config: Config, step_ms: float, rng: np.random.Generator) -> dict[str, list[float]]:
    steps, noise, share = LOG_EVERY * np.arange(1, NUM_ROWS + 1), rng.normal(size=NUM_ROWS), rng.random(NUM_ROWS)
    loss = 2 + 0.01 * (config.seed % 100) + 4 * np.exp(-steps / 2000)
    times = step_ms * (1 + 0.05 * rng.random(NUM_ROWS))
    columns = {
        "step": steps,
        "train/lr": 1e-3 * np.cos(steps / steps[-1] * math.pi / 2),
        "train/loss": loss + 0.05 * noise,
        "train/grad_norm": np.exp(0.3 * rng.normal(size=NUM_ROWS)),
        "perf/step_ms": times,
        "perf/data_wait_ms": 0.02 * times * share,
        "perf/samples_per_sec": 1000 * config.data["batch_size"] / times,
        "perf/tokens_per_sec": 64_000 * config.data["batch_size"] / times,
        "perf/tflops_per_sec": 20 / times,
        "perf/mfu_pct": 200 / times,
        "instrumentation/overhead_pct": 0.5 + share,
        "device/power_w": 300 + 20 * noise,
        "device/energy_j": 0.3 * LOG_EVERY * np.cumsum(times),
        "device/utilization_pct": 90 + 10 * share,
        "val/loss": loss + 0.01 * noise,
    }
    if config.precision.grad_scaler:
        columns["amp/scale"] = 65536.0 * 2.0 ** rng.integers(-2, 3, size=NUM_ROWS)
        columns["amp/skipped_steps"] = np.cumsum(rng.random(NUM_ROWS) < 0.01).astype(float)
    return {key: values.tolist() for key, values in columns.items()}


def _complete(record: RunRecord, facts: dict[str, object]) -> None:
    """What a completed run's record holds beside its config and figures."""
    dtype = record.identity.dtype
    half = dtype in ("float16", "bfloat16")
    weights, activations = record.identity.model_size * 4, 2**20 * record.identity.batch_size
    peak = dict.fromkeys(MEMORY_CATEGORIES, 2**16) | dict.fromkeys(("parameters", "gradients"), weights)
    peak |= {"optimizer_state": 2 * weights, "activations": activations, "autocast_weights": 0}
    if half:
        peak |= {"activations": activations // 2, "autocast_weights": weights // 2}
    total = sum(peak.values())
    record.status, record.ended_at, record.environment = "completed", record.started_at, facts
    record.summary |= {memory_key(category): size / 2**30 for category, size in peak.items()}
    record.summary |= {"memory/peak_allocated_gib": total / 2**30, "memory/peak_reserved_gib": 1.1 * total / 2**30}
    record.memory = MemoryUse(peak_bytes=total, peak=peak, end_of_forward=peak, kept={})
    flops, outputs = {dtype: 10**9, "float32": 10**6}, {dtype: 200, "float32": 200, "int64": 12}
    record.proof = ModeProof(num_operators=400, flops=flops, outputs=outputs)
    record.contamination = Contamination(verdict="clean", reasons=[])
    record.attempts = [Attempt(started_at=record.started_at, host="here", pid=1, from_step=0)]


if __name__ == "__main__":
    main()
