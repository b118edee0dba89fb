"""A W&B project whose runs no part of the suite has logged: Trainer's config and keys, with known truth and faults."""

import json
import random
from collections.abc import Sequence

from wandb_runs import record_run
from wandb_server import WandbServer
from wandb_server.recorded import EVENTS

ARMS = {"no": (0.200, 8.0, 0.0), "fp16": (0.105, 5.5, 0.002), "bf16": (0.100, 5.0, 0.001)}
"""Seconds of a step, GiB of the process, gap of the loss, by `mixed_precision`."""


def add_project(
    server: WandbServer, project: str, models: Sequence[str] = ("small", "large"), num_seeds: int = 10
) -> None:
    """Three arms of each model and seed, 60 runs by default; and of the small model's fp16 no run of seed 1, a crashed
    one, one that logged `eval_loss` for `eval/loss`, and one whose loss is NaN; of its bf16 one without a seed."""
    for model in models:
        for arm in ARMS:
            for seed in range(num_seeds):
                add_run(server, project, model, arm, seed)
    runs = server.recorded.runs
    del runs["team", project, "small-fp16-1"]
    runs["team", project, "small-fp16-2"].state = "crashed"
    add_run(server, project, "small", "fp16", 3, loss_key="eval_loss")
    add_run(server, project, "small", "fp16", 4, last=float("nan"))
    add_run(server, project, "small", "bf16", 5, seed_key="random_state")


def add_run(
    server: WandbServer,
    project: str,
    model: str,
    arm: str,
    seed: int,
    *,
    loss_key: str = "eval/loss",
    seed_key: str = "seed",
    last: float | None = None,
    name: str = "",
    **config: object,
) -> None:
    """A run of 100 steps with a row each ten, and an evaluation of 3 s each 50."""
    noise = random.Random(f"{model} {seed}")
    of_run = random.Random(f"{model} {arm} {seed}")
    seconds, gib, gap = ARMS[arm]
    size = 2.0 if model == "large" else 1.0
    level, runtime, rows = noise.gauss(2.0, 0.01), 20.0, []
    for step in range(10, 101, 10):
        runtime += 10 * size * seconds * (1 + of_run.gauss(0, 0.01))
        rows.append({"train/global_step": step, "train/loss": level + 3 / step, "_runtime": runtime})
        if step % 50 == 0:
            runtime += 3.0
            loss = level + gap + of_run.gauss(0, 0.001)
            found = last if last is not None and step == 100 else loss
            rows.append({"train/global_step": step, loss_key: found, "eval/accuracy": 0.9, "_runtime": runtime})
    name = name or f"{model}-{arm}-{seed}"
    own = {
        "mixed_precision": arm,
        seed_key: seed,
        "model_name_or_path": model,
        "learning_rate": 1e-3 if arm == "no" else 5e-4,
        "output_dir": f"./out/{name}",
        "run_name": name,
        "model": {"num_layers": 2, "vocab_size": 100},
        "num_train_epochs": 3,
        "warmup_ratio": 0.1 + seed / 1000 if arm == "no" else 0.2 + seed / 1000,
        **config,
    }
    run = record_run(server, name, None, rows, project=project)
    run.attributes["config"] = json.dumps({key: {"value": value} for key, value in own.items()})
    run.attributes["summaryMetrics"] = json.dumps({"train_runtime": runtime})
    gpu = {"system.gpu.0.memoryAllocatedBytes": (gib + 2) * 2**30, "system.proc.memory.rssMB": 3000.0}
    process = {"system.gpu.process.0.memoryAllocatedBytes": gib * 2**30}
    run.streams[EVENTS] = [json.dumps(sample) for sample in (gpu, gpu | process, gpu)]
    run.files["wandb-metadata.json"] = json.dumps({"gpu": "NVIDIA H100 80GB HBM3", "host": "node1"}).encode()
