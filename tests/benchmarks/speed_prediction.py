"""How well a calibration of this CPU predicts the step times of trainings: see README.md.

    OMP_NUM_THREADS=1 python tests/benchmarks/speed_prediction.py [--rounds 3]

calibrates the CPU as `ampsweep predict --calibrate` does, then takes steps of twelve trainings in three modes, none of
which calibrates at these sizes. JSON with measured and predicted times goes to stdout. Nothing else should run; on a
busy machine, --processor-time counts the time for which the one thread has a core.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from time import perf_counter, thread_time
from unittest.mock import patch

import torch
from rounds import machine

from ampsweep.config.compose import compose_one
from ampsweep.config.schema import Config
from ampsweep.monitors import step_clock
from ampsweep.parallel.base import SINGLE
from ampsweep.predict import device_calibration
from ampsweep.predict.device_calibration import calibrate_and_keep
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.run_prediction import time_on
from ampsweep.predict.target_device import TargetDevice
from ampsweep.speed.step_time import StepWork
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data

CPU = torch.device("cpu")
MODES = ("fp32", "amp_bf16", "pure_bf16")
STEPS_S = 2.0  # of each timing, and at least three steps


def tokens(vocabulary: int, length: int, batch_size: int) -> list[str]:
    sizes = {"vocab_size": vocabulary, "seq_len": length, "batch_size": batch_size, "num_batches": 4}
    return ["data=synthetic_tokens", *(f"data.{key}={value}" for key, value in sizes.items())]


def images(side: int, classes: int, batch_size: int) -> list[str]:
    sizes = {"image_size": side, "num_classes": classes, "batch_size": batch_size, "num_batches": 2}
    return ["data=synthetic_images", *(f"data.{key}={value}" for key, value in sizes.items())]


def model(name: str, **sizes: int) -> list[str]:
    return [f"model={name}", *(f"model.{key}={value}" for key, value in sizes.items())]


def hugging_face(name: str, config: str, **sizes: int) -> list[str]:
    own = [f"model._target_=transformers.{name}", f"+model.config._target_=transformers.{config}"]
    return ["model=custom", "task.output=logits", *own, *(f"+model.config.{key}={size}" for key, size in sizes.items())]


BERT = {"vocab_size": 2000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
VIT = {"image_size": 64, "patch_size": 8, "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3}
WORKLOADS = {
    "gpt, tiny": model("gpt_tiny") + tokens(256, 64, 8),
    "gpt, wide": model("gpt_tiny", hidden_size=512, num_heads=8) + tokens(4096, 256, 4),
    "gpt, accumulating with checkpoints": [
        *model("gpt_tiny", hidden_size=256, num_layers=4, num_heads=4),
        *tokens(512, 128, 4),
        *("trainer.grad_accum_steps=3", "trainer.activation_checkpointing=true"),
    ],
    "llama, deep": model("llama_tiny", hidden_size=256, num_layers=6) + tokens(1000, 128, 4),
    "resnet18": model("resnet18") + images(64, 100, 8),
    "resnet18, channels last, SGD": [
        *model("resnet18"),
        *images(48, 10, 16),
        "trainer.channels_last=true",
        "optimizer=sgd",
    ],
    "mlp, small": [*model("mlp_small"), "data=digits", "data.batch_size=64"],
    "mlp, wide": [*model("mlp_small", hidden_size=2048), "data=digits", "data.batch_size=256"],
    "mlp, regression with SGD": [
        *model("mlp_recipe", hidden_size=1024),
        *("data.in_features=1024", "data.out_features=1024", "data.batch_size=512", "data.num_batches=2"),
        "optimizer=sgd",
    ],
    "gan": [*model("gan_digits", hidden_size=256), "task=gan", "data=digits", "data.batch_size=64", "optimizer=adam"],
    "hf bert": hugging_face("BertForMaskedLM", "BertConfig", **BERT, intermediate_size=1024) + tokens(2000, 128, 8),
    "hf vit": [
        *hugging_face("ViTForImageClassification", "ViTConfig", **VIT, intermediate_size=768, num_labels=10),
        *images(64, 10, 16),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="timings of each training, in turn; the shortest counts")
    parser.add_argument("--processor-time", action="store_true")
    arguments = parser.parse_args()
    clock = thread_time if arguments.processor_time else perf_counter
    began, loads = perf_counter(), [os.getloadavg()[0]]
    with patch.object(device_calibration, "perf_counter", clock), patch.object(step_clock, "perf_counter", clock):
        calibration, _ = calibrate_and_keep("cpu")
    calibrating_s = perf_counter() - began
    configs = {
        (name, mode): compose_one([*overrides, f"precision={mode}", "device=cpu", "tracking=disabled"])
        for name, overrides in WORKLOADS.items()
        for mode in MODES
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in configs}
    for _ in range(arguments.rounds):
        for key, config in configs.items():
            times[key].append(statistics.median(steps_ms(config, clock)))
        loads.append(os.getloadavg()[0])
    rows = []
    for (name, mode), config in configs.items():
        works = FakeTraining(config, TargetDevice("cpu")).trace(config.data["batch_size"]).works
        predicted = time_on(calibration.device, config, StepWork(works)).step_ms
        measured = min(times[name, mode])  # what disturbs a machine only adds time
        facts = {"workload": name, "mode": mode, "measured_ms": measured, "predicted_ms": predicted.expected}
        is_in_range = predicted.low < measured < predicted.high
        rows.append(facts | {"in_range": is_in_range, "timings_ms": times[name, mode]})
        print(f"{name:36} {mode:10} {measured:8.2f} ms, predicted {predicted.expected:8.2f} ms", file=sys.stderr)
    print(
        json.dumps({**summary(rows), "calibrating_s": calibrating_s, "machine": machine(loads), "rows": rows}, indent=1)
    )


def steps_ms(config: Config, clock: Callable[[], float]) -> Iterator[float]:
    """The times of a new training's steps after the second."""
    built = build(config, CPU, build_data(config, CPU), SINGLE)
    trainer = assemble_trainer(config, built, CPU)
    trainer.model.train()
    with built.precision.flags():
        number, ends = 0, math.inf
        while number < 5 or clock() < ends:
            began = clock()
            trainer.train_step()
            trainer.step += 1
            number += 1
            if number > 2:
                yield 1e3 * (clock() - began)
            elif number == 2:
                ends = clock() + STEPS_S


def summary(rows: list[dict]) -> dict[str, float]:
    """Errors in percent of the measured time, and of the speed-ups over fp32."""
    ratios = {(row["workload"], row["mode"]): row["predicted_ms"] / row["measured_ms"] for row in rows}
    errors = [100 * abs(ratio - 1) for ratio in ratios.values()]
    speedups = [100 * abs(ratios[name, "fp32"] / ratio - 1) for (name, mode), ratio in ratios.items() if mode != "fp32"]
    return {
        "median_error_pct": statistics.median(errors),
        "p90_error_pct": statistics.quantiles(errors, n=10)[-1],
        "worst_error_pct": max(errors),
        "median_speedup_error_pct": statistics.median(speedups),
        "in_range_pct": 100 * statistics.fmean(row["in_range"] for row in rows),
    }


if __name__ == "__main__":
    main()
