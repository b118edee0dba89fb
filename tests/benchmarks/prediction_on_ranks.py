"""Predicted against measured memory of the ranks of a training by DDP and FSDP2.

    python tests/benchmarks/prediction_on_ranks.py [--ranks 2] [--json FILE] [--only mlp,gpt] [--strategies ddp]

prints a table and, with --json, writes the same figures to a file. Each row is a step of a training, really taken by
gloo ranks on this machine and traced on each, and the same step predicted for the fullest rank, by
tensors without values in a group of ranks that do not exist. `communication` is the category of that name at the peak.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "predict"))

from steps import composed
from test_on_ranks import measured_on_ranks

from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

GPT2 = (
    *("model=custom", "model._target_=transformers.GPT2LMHeadModel", "+model.config._target_=transformers.GPT2Config"),
    *("+model.config.vocab_size=500", "+model.config.n_positions=64", "+model.config.n_embd=96"),
    *("+model.config.n_layer=3", "+model.config.n_head=4", "data=synthetic_tokens"),
    *("task=model_loss", "task.input_argument=input_ids", "task.target_argument=labels", "task.targets=inputs"),
    *("data.vocab_size=500", "data.seq_len=64", "data.batch_size=4", "data.num_batches=4"),
)
WORKLOADS = {
    "mlp": ("model=mlp_small", "data=digits", "data.batch_size=64"),
    "gpt": (
        *("model=gpt_tiny", "model.num_layers=4", "model.hidden_size=128", "model.dropout=0.1"),
        *("data=synthetic_tokens", "data.vocab_size=1000", "data.seq_len=64", "data.batch_size=4"),
        "data.num_batches=8",
    ),
    "resnet": (
        "model=resnet18",
        "data.image_size=16",
        "data.num_classes=10",
        "data.batch_size=4",
        "data.num_batches=8",
    ),
    "hugging_face": GPT2,
}
STRATEGIES = ("ddp", "fsdp2")
MODES = ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "accumulated": ("trainer.grad_accum_steps=3",),
    "checkpointed": ("trainer.activation_checkpointing=true",),
    "reduced in bfloat16": ("parallel.reduce_dtype=bfloat16",),
    "reduced in float16": ("parallel.reduce_dtype=float16",),
    "reduced in float32": ("parallel.reduce_dtype=float32",),
    "autocast": ("parallel.mixed_precision=autocast",),
    "kept after forward": ("parallel.reshard_after_forward=false",),
}


def cases(names: Sequence[str], strategies: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name every training, and give its overrides."""
    for name, strategy, mode in itertools.product(names, strategies, MODES):
        for variant, overrides in VARIANTS.items():
            if _says_something(name, strategy, mode, variant):
                common = (f"parallel={strategy}", f"precision={mode}", "optimizer=adamw")
                yield f"{name} {strategy} {mode} {variant}", (*WORKLOADS[name], *common, *overrides)


def _says_something(name: str, strategy: str, mode: str, variant: str) -> bool:
    if variant == "plain":  # batch normalization has no kernel for what the policy would cast
        return not (name == "resnet" and strategy == "fsdp2" and mode.startswith("amp"))
    if variant == "autocast" and name == "resnet":
        return strategy == "fsdp2" and mode.startswith("amp")
    if variant == "checkpointed":
        return name in ("gpt", "hugging_face")
    if variant in ("autocast", "kept after forward"):
        return strategy == "fsdp2" and name == "gpt" and (variant != "autocast" or mode.startswith("amp"))
    own = "reduced in bfloat16" if mode == "pure_bf16" else "reduced in float32"
    return name in ("gpt", "mlp") and variant != own


def rows(names: Sequence[str], strategies: Sequence[str], world_size: int) -> Iterator[dict[str, Any]]:
    """A row a training: bytes of the fullest rank, measured and predicted, and their difference in percent."""
    todo = [*cases(names, strategies)]
    measured = measured_on_ranks([overrides for _, overrides in todo], world_size)
    for (name, overrides), ranks in zip(todo, measured, strict=True):
        refused = next((rank for rank in ranks if isinstance(rank, str)), None)
        if refused is not None:
            yield {"case": name, "refused": refused}
            continue
        fullest = max(ranks, key=lambda rank: rank.peak_bytes)
        config = composed(*overrides)
        step = FakeTraining(config, TargetDevice("cpu"), world_size).trace(config.data["batch_size"])
        peak = step.peak()
        yield {
            "case": name,
            "measured_bytes": fullest.peak_bytes,
            "predicted_bytes": peak.num_bytes,
            "error_pct": 100 * (peak.num_bytes / fullest.peak_bytes - 1),
            "forward_error_pct": 100
            * (sum(step.at(step.end_of_forward).values()) / sum(fullest.end_of_forward.values()) - 1),
            "communication": fullest.peak["communication"],
            "communication_predicted": peak.categories["communication"],
            "ranks": [rank.peak_bytes for rank in ranks],
            "categories_differ": {
                key: [fullest.peak[key], peak.categories[key]]
                for key in fullest.peak
                if fullest.peak[key] != peak.categories[key]
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas between them")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    arguments = parser.parse_args()
    found = []
    for row in rows(arguments.only.split(","), arguments.strategies.split(","), arguments.ranks):
        found.append(row)
        print(
            " | ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()), flush=True
        )
    errors = [abs(row[name]) for row in found for name in ("error_pct", "forward_error_pct") if name in row]
    print(f"{len(errors) // 2} trainings, largest error: {max(errors):.4f} %")
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"torch": torch.__version__, "ranks": arguments.ranks, "rows": found}, indent=1)
        )


if __name__ == "__main__":
    main()
