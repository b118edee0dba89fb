"""Predicted against measured memory on the CPU, and how long a prediction takes.

    python tests/benchmarks/prediction.py [--ranks 2] [--json FILE] [--only mlp,resnet,gpt] [--modes amp_fp16,pure_fp16]

prints tables and, with --json, writes the same figures to a file. Each row is a step of a training, really taken and
traced, and the same step predicted by tensors without values. With --ranks, DDP and FSDP2 train on that many gloo
ranks, and the fullest is compared with the prediction for ranks that do not exist.
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

from rounds import timed
from steps import composed, measured
from test_on_ranks import measured_on_ranks

from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

Case = tuple[str, tuple[str, ...]]
"""The name of a training, and its overrides."""

WORKLOADS = {
    "mlp": ("model=mlp_small", "data=digits", "data.batch_size=64"),
    "mlp_recipe": ("model=mlp_recipe", "model.hidden_size=512", "data.in_features=512", "data.out_features=512"),
    "resnet": (
        *("model=resnet18", "data.num_classes=10"),
        *("data.image_size=32", "data.batch_size=8", "data.num_batches=3"),
    ),
    "gpt": (
        *("model=gpt_tiny", "model.num_layers=4", "model.hidden_size=128", "model.dropout=0.1"),
        *("data=synthetic_tokens", "data.vocab_size=1000"),
        *("data.seq_len=128", "data.batch_size=8", "data.num_batches=3"),
    ),
}
MODES = ("fp32", "amp_bf16", "amp_fp16", "pure_bf16", "pure_fp16")
SMALLER = {("resnet", mode): ("data.image_size=16", "data.batch_size=2") for mode in ("amp_fp16", "pure_fp16")}
"""Backward through a float16 convolution takes a CPU, even one with float16 of its own, a hundred times as long as
through a bfloat16 one: these cases have other sizes, which their rows name."""
OPTIMIZERS = {"sgd": ("optimizer=sgd", "optimizer.momentum=0.9"), "adamw": ("optimizer=adamw",)}
SHARED: dict[str, tuple[str, ...]] = {
    "plain": (),
    "accumulated": ("trainer.grad_accum_steps=3",),
    "checkpointed": ("trainer.activation_checkpointing=true",),
}
VARIANTS = SHARED | {"clipped": ("trainer.max_grad_norm=1.0",)}

WORKLOADS_ON_RANKS = {
    "mlp": WORKLOADS["mlp"],
    "gpt": (*WORKLOADS["gpt"], "data.seq_len=64", "data.batch_size=4", "data.num_batches=8"),
    "resnet": (*WORKLOADS["resnet"], "data.image_size=16", "data.batch_size=4", "data.num_batches=8"),
    "hugging_face": (
        *("model=custom", "model._target_=transformers.GPT2LMHeadModel", "data=synthetic_tokens"),
        *("+model.config._target_=transformers.GPT2Config", "+model.config.vocab_size=500"),
        *("+model.config.n_positions=64", "+model.config.n_embd=96", "+model.config.n_layer=3"),
        *("+model.config.n_head=4", "task=model_loss", "task.input_argument=input_ids", "task.target_argument=labels"),
        *("task.targets=inputs", "data.vocab_size=500", "data.seq_len=64", "data.batch_size=4", "data.num_batches=4"),
    ),
}
VARIANTS_ON_RANKS = SHARED | {
    **{f"reduced in {dtype}": (f"parallel.reduce_dtype={dtype}",) for dtype in ("bfloat16", "float16", "float32")},
    "autocast": ("parallel.mixed_precision=autocast",),
    "kept after forward": ("parallel.reshard_after_forward=false",),
}


def cases(names: Sequence[str], modes: Sequence[str]) -> Iterator[Case]:
    for name, mode, optimizer, variant in itertools.product(names, modes, OPTIMIZERS, VARIANTS):
        smaller = SMALLER.get((name, mode), ())
        case = " ".join([name, *smaller, mode, optimizer, variant])
        yield case, (*WORKLOADS[name], *smaller, f"precision={mode}", *OPTIMIZERS[optimizer], *VARIANTS[variant])


def cases_on_ranks(names: Sequence[str], modes: Sequence[str]) -> Iterator[Case]:
    for name, strategy, mode in itertools.product(names, ("ddp", "fsdp2"), modes):
        for variant, overrides in VARIANTS_ON_RANKS.items():
            if _says_something(name, strategy, mode, variant):
                common = (f"parallel={strategy}", f"precision={mode}", "optimizer=adamw")
                yield f"{name} {strategy} {mode} {variant}", (*WORKLOADS_ON_RANKS[name], *common, *overrides)


def _says_something(name: str, strategy: str, mode: str, variant: str) -> bool:
    by_policy = strategy == "fsdp2" and mode.startswith("amp")
    match variant:
        case "plain":  # batch normalization has no kernel for what the policy would cast
            return not (name == "resnet" and by_policy)
        case "checkpointed":
            return name in ("gpt", "hugging_face")
        case "autocast":
            return name in ("gpt", "resnet") and by_policy
        case "kept after forward":
            return name == "gpt" and strategy == "fsdp2"
    own = "reduced in bfloat16" if mode == "pure_bf16" else "reduced in float32"
    return name in ("gpt", "mlp") and variant != own


def rows(trainings: Sequence[Case], num_ranks: int) -> Iterator[dict[str, Any]]:
    """A row a training: bytes at the fullest rank's peak, and the prediction's errors there and after forward."""
    on_ranks = measured_on_ranks([overrides for _, overrides in trainings], num_ranks) if num_ranks > 1 else None
    for number, (name, overrides) in enumerate(trainings):
        ranks = [measured(*overrides)] if on_ranks is None else on_ranks[number]
        if refused := [rank for rank in ranks if isinstance(rank, str)]:
            yield {"case": name, "refused": refused[0]}
            continue
        truth = max(ranks, key=lambda rank: rank.peak_bytes)
        config = composed(*overrides)
        step = FakeTraining(config, TargetDevice("cpu"), num_ranks).trace(config.data["batch_size"])
        peak, forward = step.peak(), sum(step.at(step.end_of_forward).values())
        pairs = {key: [size, peak.categories[key]] for key, size in truth.peak.items()}
        yield {
            "case": name,
            "measured_bytes": truth.peak_bytes,
            "predicted_bytes": peak.num_bytes,
            "error_pct": 100 * (peak.num_bytes / truth.peak_bytes - 1),
            "forward_error_pct": 100 * (forward / sum(truth.end_of_forward.values()) - 1),
            "ranks": [rank.peak_bytes for rank in ranks],
            "categories_differ": {key: pair for key, pair in pairs.items() if pair[0] != pair[1]},
        }


def start_to_end() -> Iterator[dict[str, Any]]:
    """Seconds and MiB of resident memory of one prediction, its process's start included: the least of three."""
    for model, limit_s in {"gpt_small": 3.0, "gpt_xl": 10.0}.items():
        command = [sys.executable, "-m", "ampsweep.commands.main", "predict", f"model={model}", "precision=amp_bf16"]
        command += ["predict.target=cuda", "format=json"]
        tries = [timed(command, Path.cwd()) for _ in range(3)]
        yield {"case": model, "limit_s": limit_s, **{key: min(one[key] for one in tries) for key in tries[0]}}


def _print(row: dict[str, Any]) -> None:
    print(" | ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", help="workloads, with commas between them")
    parser.add_argument("--modes", help="precision modes, with commas between them")
    arguments = parser.parse_args()
    choose, workloads, modes = cases, WORKLOADS, MODES
    if arguments.ranks > 1:
        choose, workloads, modes = cases_on_ranks, WORKLOADS_ON_RANKS, MODES[:-1]
    names = arguments.only.split(",") if arguments.only else [*workloads]
    trainings = [*choose(names, arguments.modes.split(",") if arguments.modes else modes)]
    found = []
    for row in rows(trainings, arguments.ranks):
        found.append(row)
        _print(row)
    errors = [abs(row[name]) for row in found for name in ("error_pct", "forward_error_pct") if name in row]
    print(f"{len(errors) // 2} trainings, largest error: {max(errors):.4f} %")
    whole = [*start_to_end()] if arguments.ranks == 1 else []
    for row in whole:
        _print(row)
    if arguments.json is not None:
        figures = {"torch": torch.__version__, "ranks": arguments.ranks, "rows": found, "start_to_end": whole}
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
