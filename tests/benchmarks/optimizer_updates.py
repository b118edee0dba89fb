"""The time of an optimizer's step by what it keeps: `python tests/benchmarks/optimizer_updates.py`, see README.md.

All take the same steps in turn, in one process, on parameters with the shapes of a GPT's; ratios are those of medians
to torch's fused AdamW on float32. JSON goes to stdout.
"""

import argparse
import json
import os
import random
import statistics
from functools import partial
from time import perf_counter

import torch
from rounds import machine
from torch import nn

from ampsweep.models.gpt import GPT
from ampsweep.precision import Precision

KINDS = {
    "fp32": ("fp32", None),
    "pure_bf16": ("pure_bf16", None),
    "master_bf16": ("master_bf16", None),
    "master_fp16": ("master_fp16", None),
    "bf16_sr": ("bf16_sr", None),
    "fp32, bfloat16 states": ("fp32", "bfloat16"),
}
SIZES = {
    "small": {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "vocab_size": 1024},
    "large": {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "vocab_size": 50257},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="small")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    steps = {name: _step(*kind, SIZES[arguments.size], arguments.device) for name, kind in KINDS.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(arguments.rounds + 2):
        for name in random.sample([*steps], len(steps)):
            _wait(arguments.device)
            began = perf_counter()
            steps[name]()
            _wait(arguments.device)
            if number >= 2:
                times[name].append(1e3 * (perf_counter() - began))
    medians = {name: statistics.median(of) for name, of in times.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(of, times["fp32"], strict=True)) for name, of in times.items()
    }
    print(
        json.dumps(
            {
                "machine": machine([os.getloadavg()[0]]),
                "num_threads": torch.get_num_threads(),
                "parameters": sum(p.numel() for p in GPT(seq_len=64, **SIZES[arguments.size]).parameters()),
                "step_ms": medians,
                "ratio_to_fp32": ratios,
            },
            indent=1,
        )
    )


def _step(mode: str, state_dtype: str | None, size: dict[str, int], device: str) -> partial[None]:
    precision = Precision(mode, device)
    torch.manual_seed(0)
    model: nn.Module = precision.convert(GPT(seq_len=64, **size))
    build = partial(torch.optim.AdamW, lr=1e-4, fused=True)
    optimizer = precision.optimizer(build, model.parameters(), state_dtype=state_dtype)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return partial(optimizer.step)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


if __name__ == "__main__":
    main()
