"""Predicted against traced memory on the CPU, against published figures, and how long a prediction takes.

    python tests/benchmarks/prediction.py [--json FILE] [--only mlp,resnet,gpt] [--modes amp_fp16,pure_fp16]

prints tables and, with --json, writes the same figures to a file. Every precision mode is a row: the workload's second
training step really taken and traced, and the same step predicted from fake tensors, with sgd and adamw, with and
without accumulation, activation checkpointing and clipping. `scratch` is what kernels took for themselves besides (the
profiler's peak above that of the tensors): measured, not predicted.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "predict"))


from steps import assembled, predicted
from test_cuda_memory import max_memory_allocated, recipe

from ampsweep.predict.target_device import TargetDevice

WORKLOADS = {
    "mlp": ("model=mlp_small", "data=digits", "data.batch_size=64"),
    "mlp_recipe": ("model=mlp_recipe", "model.hidden_size=512", "data.in_features=512", "data.out_features=512"),
    "resnet": (
        "model=resnet18",
        "data.image_size=32",
        "data.num_classes=10",
        "data.batch_size=8",
        "data.num_batches=3",
    ),
    "gpt": (
        *(
            "model=gpt_tiny",
            "model.num_layers=4",
            "model.hidden_size=128",
            "model.dropout=0.1",
            "data=synthetic_tokens",
        ),
        *("data.vocab_size=1000", "data.seq_len=128", "data.batch_size=8", "data.num_batches=3"),
    ),
}
MODES = ("fp32", "amp_bf16", "amp_fp16", "pure_bf16", "pure_fp16")
SMALLER = {("resnet", mode): ("data.image_size=16", "data.batch_size=2") for mode in ("amp_fp16", "pure_fp16")}
"""Backward through a float16 convolution takes a CPU, even one with float16 of its own, a hundred times as long as
through a bfloat16 one: these cases have other sizes, which their rows name."""
OPTIMIZERS = {"sgd": ("optimizer=sgd", "optimizer.momentum=0.9"), "adamw": ("optimizer=adamw",)}
VARIANTS = {
    "plain": (),
    "clipped": ("trainer.max_grad_norm=1.0",),
    "accumulated": ("trainer.grad_accum_steps=3",),
    "checkpointed": ("trainer.activation_checkpointing=true",),
}
EXACT = ("parameters", "gradients", "optimizer_state")
STARTUP_LIMITS_S = {"gpt_small": 3.0, "gpt_xl": 10.0}


def against_traced(names: list[str], modes: list[str]) -> Iterator[dict[str, Any]]:
    """A row a case: bytes traced and predicted at the peak, their difference in percent there and at the end of the
    forward pass, and the kernels' scratch."""
    for name, mode, optimizer, variant in itertools.product(names, modes, OPTIMIZERS, VARIANTS):
        smaller = SMALLER.get((name, mode), ())
        overrides = (*WORKLOADS[name], *smaller, f"precision={mode}", *OPTIMIZERS[optimizer], *VARIANTS[variant])
        truth, step = measured_memory(*overrides), predicted(*overrides)
        peak, forward = step.peak(), sum(step.at(step.end_of_forward).values())
        error_pct = 100 * (peak.num_bytes / truth.peak_bytes - 1)
        forward_error_pct = 100 * (forward / sum(truth.end_of_forward.values()) - 1)
        exact = all(peak.categories[key] == truth.peak[key] for key in EXACT)
        yield {
            "case": " ".join([name, *smaller, mode, optimizer, variant]),
            "traced_bytes": truth.peak_bytes,
            "predicted_bytes": peak.num_bytes,
            "error_pct": error_pct,
            "forward_error_pct": forward_error_pct,
            "parameters_gradients_state_exact": exact,
            "scratch_bytes": truth.get("unattributed_bytes"),
        }


def measured_memory(*overrides: str) -> Any:
    """The memory of the second step with kernels' own, as in a run's record."""
    _, trainer, built = assembled(*overrides)
    with built.precision.flags():
        for _ in range(2):
            with trainer.instruments.step():
                trainer.train_step()
    return trainer.instruments.memory()


def published() -> list[dict[str, Any]]:
    """The PyTorch AMP recipe on a T4 with torch 1.11: printed by it, and predicted."""
    target = TargetDevice("cuda", (7, 5), torch_version=(1, 11))
    peaks = max_memory_allocated(lambda mark: recipe(mark, num_steps=3), target)
    printed = {"default precision": (1_350_681_600, peaks[1]), "mixed precision": (1_577_232_384, peaks[3])}
    return [
        {"case": f"AMP recipe, {name}", "published_bytes": truth, "predicted_bytes": found, "difference": found - truth}
        for name, (truth, found) in printed.items()
    ]


def start_to_end() -> list[dict[str, Any]]:
    """Seconds and MiB of resident memory of one prediction, its process's start included: the best of three."""
    rows = []
    for model, limit_s in STARTUP_LIMITS_S.items():
        command = [sys.executable, "-m", "ampsweep.commands.main", "predict", f"model={model}", "precision=amp_bf16"]
        command += ["predict.target=cuda", "format=json"]
        seconds, resident = zip(*(_timed(command) for _ in range(3)), strict=True)
        rows.append({"case": model, "seconds": min(seconds), "limit_s": limit_s, "resident_mib": max(resident)})
    return rows


def _timed(command: list[str]) -> tuple[float, float]:
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        lines = status.read_text().splitlines() if status.exists() else []
        peak = max([peak, *(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))])
        time.sleep(0.02)
    assert process.returncode == 0
    return time.perf_counter() - began, peak


def _print(rows: list[dict[str, Any]]) -> None:
    if rows:
        print("| " + " | ".join(rows[0]) + " |\n| --- " + "| ---: " * (len(rows[0]) - 1) + "|")
    for row in rows:
        cells = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values())
        print("| " + " | ".join(cells) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas between them")
    parser.add_argument("--modes", default=",".join(MODES), help="precision modes, with commas between them")
    arguments = parser.parse_args()
    traced = [*against_traced(arguments.only.split(","), arguments.modes.split(","))]
    figures = {"torch": torch.__version__, "traced": traced, "published": published(), "start_to_end": start_to_end()}
    for name in ("traced", "published", "start_to_end"):
        _print(figures[name])
    largest = max(abs(row[name]) for row in traced for name in ("error_pct", "forward_error_pct"))
    print(f"largest error: {largest:.4f}%")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
