"""nanoGPT's own model under the step of its train.py, on random tokens: the reference for GPT-2 124M.

Its code is not part of this repository: bring a checkout of github.com/karpathy/nanoGPT, whose model.py is imported.
What its train.py sets is set here: TF32 allowed, bfloat16 autocast, fused AdamW with its two groups, gradients clipped
at 1, no dropout, torch.compile. Prints one line of JSON.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from campaign.timing import Timed, time_steps

NUM_BATCHES = 8


def train(arguments: argparse.Namespace) -> Timed:
    """Train as configured by the command line."""
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    model, optimizer = _built(arguments, device)
    shape = (arguments.batch_size, arguments.seq_len)
    batches = [
        (
            torch.randint(arguments.vocab_size, shape, device=device),
            torch.randint(arguments.vocab_size, shape, device=device),
        )
        for _ in range(NUM_BATCHES)
    ]
    taken = 0

    def step() -> None:
        nonlocal taken
        tokens, targets = batches[taken % NUM_BATCHES]
        with torch.autocast(device.type, torch.bfloat16):
            _, loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        taken += 1

    return time_steps(step, num_steps=arguments.steps, num_warmup_steps=arguments.warmup_steps, device=device)


def _built(arguments: argparse.Namespace, device: torch.device) -> tuple[Any, torch.optim.Optimizer]:
    sys.path.insert(0, str(arguments.code.resolve()))
    code: Any = importlib.import_module("model")
    config = code.GPTConfig(
        block_size=arguments.seq_len,
        vocab_size=arguments.vocab_size,
        n_layer=arguments.num_layers,
        n_head=arguments.num_heads,
        n_embd=arguments.hidden_size,
        dropout=0.0,
        bias=False,
    )
    model = code.GPT(config).to(device)
    optimizer: torch.optim.Optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), device.type)
    return torch.compile(model) if arguments.compile else model, optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--precision", required=True, choices=("amp_bf16",))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", choices=("true", "false"), default="true")
    for name in ("num-layers", "hidden-size", "num-heads", "vocab-size", "seq-len", "batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("steps", "warmup-steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    arguments.compile = arguments.compile == "true"
    timed = train(arguments)
    tokens_per_sec = 1e3 * arguments.batch_size * arguments.seq_len / timed.step_ms
    print(json.dumps(timed.figures() | {"tokens_per_sec": tokens_per_sec}))


if __name__ == "__main__":
    main()
