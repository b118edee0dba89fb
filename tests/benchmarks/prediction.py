"""Predicted against traced memory on the CPU, against published figures, and how long a prediction takes.

    python tests/benchmarks/prediction.py [--json FILE] [--only mlp,resnet,gpt]

prints tables and, with --json, writes the same figures to a file. Every precision mode that the CPU trains in
reasonable time is a row: the workload's second training step really taken and traced, and the same step predicted from
fake tensors, with sgd and adamw, with and without accumulation, activation checkpointing and clipping. `scratch` is
what kernels took for themselves besides (the profiler's peak above that of the tensors): measured, not predicted.
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

from recipe_loop import recipe
from steps import measured_memory, predicted
from test_published_figures import max_memory_allocated

from ampsweep.predict.target import Target

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
TOO_SLOW = {("resnet", "amp_fp16"), ("resnet", "pure_fp16")}
"""float16 convolutions take most CPUs minutes."""
OPTIMIZERS = {"sgd": ("optimizer=sgd", "optimizer.momentum=0.9"), "adamw": ("optimizer=adamw",)}
VARIANTS = {
    "plain": ("trainer.max_grad_norm=null",),
    "clipped": (),
    "accumulated": ("trainer.grad_accum_steps=3",),
    "checkpointed": ("trainer.activation_checkpointing=true",),
}
EXACT = ("parameters", "gradients", "optimizer_state")
STARTUP_LIMITS_S = {"gpt_small": 3.0, "gpt_xl": 10.0}


def against_traced(names: list[str]) -> Iterator[dict[str, Any]]:
    """A row a case: bytes traced and predicted, their difference in percent, and the kernels' scratch."""
    for name, mode, optimizer, variant in itertools.product(names, MODES, OPTIMIZERS, VARIANTS):
        if (name, mode) in TOO_SLOW:
            continue
        overrides = (*WORKLOADS[name], f"precision={mode}", *OPTIMIZERS[optimizer], *VARIANTS[variant])
        truth, peak = measured_memory(*overrides), predicted(*overrides).peak()
        error_pct = 100 * (peak.num_bytes / truth["peak_bytes"] - 1)
        exact = all(peak.categories[key] == truth["peak"][key] for key in EXACT)
        yield {
            "case": f"{name} {mode} {optimizer} {variant}",
            "traced_bytes": truth["peak_bytes"],
            "predicted_bytes": peak.num_bytes,
            "error_pct": error_pct,
            "parameters_gradients_state_exact": exact,
            "scratch_bytes": truth.get("unattributed_bytes"),
        }


def published() -> list[dict[str, Any]]:
    """The PyTorch AMP recipe on a T4 with torch 1.11: printed by it, and predicted."""
    target = Target("cuda", (7, 5), torch_version=(1, 11))
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
        command = [sys.executable, "-m", "ampsweep.entries.cli", "predict", f"model={model}", "precision=amp_bf16"]
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
    arguments = parser.parse_args()
    traced = [*against_traced(arguments.only.split(","))]
    figures = {"torch": torch.__version__, "traced": traced, "published": published(), "start_to_end": start_to_end()}
    for name in ("traced", "published", "start_to_end"):
        _print(figures[name])
    print(f"largest error: {max(abs(row['error_pct']) for row in traced):.4f}%")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
