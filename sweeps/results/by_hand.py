"""A sweep's loops as anyone would write them in plain torch: what the suite's own loop is compared with.

    python sweeps/results/by_hand.py FILE [KEY=VALUE ...] [--nanogpt=CHECKOUT]

Takes a sweep file and overrides as `ampsweep sweep` does, measures each of its points in a process of its own and
prints a line of JSON for each. A point is the PyTorch AMP recipe, or with `--nanogpt` nanoGPT's own model under the
step of its train.py, on random tokens. nanoGPT's code is not part of this repository: bring a checkout of
github.com/karpathy/nanoGPT, whose model.py is imported.
"""

import argparse
import importlib
import itertools
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.config.compose import compose_one
from ampsweep.config.schema import Config
from ampsweep.config.sweep_file import read_sweep
from ampsweep.precision.precision import unsupported_reason
from ampsweep.training.assembly import warmup_seconds
from ampsweep.training.components.device import resolve_device

AUTOCAST: Final = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}

_CUDA: Final[Any] = torch.cuda  # whose events have no types


def recipe(config: Config, device: torch.device) -> Callable[[], None]:
    """A step on random batches resident on the device: linear layers with ReLUs between, SGD, mean squared error.

    There is a batch more than the suite trains on, whose validation batch is resident, too.
    """
    mode, model, data = config.precision.mode, config.model, config.data
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    dtype = torch.bfloat16 if mode == "pure_bf16" else torch.float32
    width, shape = model["hidden_size"], (data["batch_size"], model["hidden_size"])
    batches = itertools.cycle(
        [(torch.randn(shape, device=device), torch.randn(shape, device=device)) for _ in range(data["num_batches"] + 1)]
    )
    layers = [nn.Linear(width, width) for _ in range(model["num_layers"])]
    network = nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.ReLU(), layer)))
    network = network.to(device, dtype)
    optimizer = torch.optim.SGD(network.parameters(), lr=config.optimizer["lr"], fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=mode == "amp_fp16")

    def step() -> None:
        inputs, targets = (tensor.to(dtype) for tensor in next(batches))
        with torch.autocast(device.type, AUTOCAST.get(mode), enabled=mode in AUTOCAST):
            loss = F.mse_loss(network(inputs).float(), targets.float())
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def nanogpt(config: Config, device: torch.device, checkout: Path) -> Callable[[], None]:
    """A step as nanoGPT's train.py sets it: TF32 allowed, bfloat16 autocast, fused AdamW with its two groups, gradients
    clipped at 1, no dropout, torch.compile where the sweep compiles."""
    model, data = config.model, config.data
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    sys.path.insert(0, str(checkout.resolve()))
    code: Any = importlib.import_module("model")
    sizes = {"block_size": data["seq_len"], "vocab_size": model["vocab_size"], "n_layer": model["num_layers"]}
    sizes |= {"n_head": model["num_heads"], "n_embd": model["hidden_size"], "dropout": 0.0, "bias": False}
    network: Any = code.GPT(code.GPTConfig(**sizes)).to(device)
    optimizer = network.configure_optimizers(0.1, 6e-4, (0.9, 0.95), device.type)
    network = torch.compile(network) if config.trainer.compile else network

    def tokens() -> torch.Tensor:
        return torch.randint(model["vocab_size"], (data["batch_size"], data["seq_len"]), device=device)

    batches = itertools.cycle([(tokens(), tokens()) for _ in range(data["num_batches"] + 1)])

    def step() -> None:
        inputs, targets = next(batches)
        with torch.autocast(device.type, torch.bfloat16):
            _, loss = network(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def time_steps(
    step: Callable[[], object],
    *,
    num_steps: int,
    num_warmup_steps: int,
    warmup_seconds: float = 0.0,
    device: torch.device,
) -> dict[str, float]:
    """Take this many steps, the first of which are warm-up, with further ones until that has lasted this long.

    Returns:
        `step_ms`: median over the steps, from event to event on a GPU; `wall_ms`: the time from the first step's begin
        to the last one's end over their number; on a GPU `peak_bytes`: the peak of its allocator.
    """
    assert num_steps > num_warmup_steps
    warm_s = time.perf_counter() + warmup_seconds
    for _ in range(num_warmup_steps):
        step()
    while time.perf_counter() < warm_s:
        step()
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    now: Callable[[], Any] = _event if on_cuda else time.perf_counter
    began_s = time.perf_counter()
    moments = [now()]
    for _ in range(num_steps - num_warmup_steps):
        step()
        moments.append(now())
    if on_cuda:
        torch.cuda.synchronize(device)
    wall_ms = 1e3 * (time.perf_counter() - began_s) / (num_steps - num_warmup_steps)
    step_ms = statistics.median(_between_ms(one, other) for one, other in itertools.pairwise(moments))
    peak = {"peak_bytes": torch.cuda.max_memory_allocated(device)} if on_cuda else {}
    return {"step_ms": step_ms, "wall_ms": wall_ms} | peak


def measure(config: Config, checkout: Path | None) -> dict[str, Any] | None:
    """The facts of a point and the figures of its loop; None if the device cannot do its mode."""
    device = resolve_device(config.device)
    if unsupported_reason(config.precision, device) is not None:
        return None
    step = recipe(config, device) if checkout is None else nanogpt(config, device, checkout)
    assert config.trainer.steps is not None, "sweeps of the campaign count steps"
    taken = {"num_steps": config.trainer.steps, "num_warmup_steps": config.trainer.warmup_steps}
    figures = time_steps(step, device=device, warmup_seconds=warmup_seconds(config, device), **taken)
    facts = {"experiment": config.name, "arm": config.precision.mode, "seed": config.seed}
    facts |= {"compile": config.trainer.compile, "vocab_size": config.model.get("vocab_size")}
    if checkout is not None:
        figures["tokens_per_sec"] = 1e3 * config.data["batch_size"] * config.data["seq_len"] / figures["step_ms"]
    return facts | figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE", help="a sweep, such as sweeps/results/recipe.yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every point")
    parser.add_argument("--nanogpt", type=Path, metavar="CHECKOUT", help="measure nanoGPT's model and step")
    arguments = parser.parse_intermixed_args()
    num_failed = 0
    for point in read_sweep(arguments.file).overrides(arguments.overrides):
        config = compose_one(point)
        with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as process:
            measured = process.submit(measure, config, arguments.nanogpt)
        error = measured.exception()
        if error is not None:  # of one point: the others are measured
            num_failed += 1
            print(f"{config.precision.mode}, seed {config.seed}: {error}", file=sys.stderr, flush=True)
        elif (row := measured.result()) is not None:
            print(json.dumps(row), flush=True)
    return 1 if num_failed else 0


def _event() -> Any:
    event = _CUDA.Event(enable_timing=True)
    event.record()
    return event


def _between_ms(one: Any, other: Any) -> float:
    return 1e3 * (other - one) if isinstance(one, float) else float(one.elapsed_time(other))


if __name__ == "__main__":
    sys.exit(main())
