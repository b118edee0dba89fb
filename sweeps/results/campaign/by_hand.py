"""The PyTorch AMP recipe as anyone would write it, in plain torch: what the suite's own loop is compared with.

One process a precision mode; prints one line of JSON.
"""

import argparse
import json

import torch
import torch.nn.functional as F
from torch import nn

from campaign.timing import Timed, time_steps

DTYPES = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
NUM_LAYERS = 3


def train(arguments: argparse.Namespace) -> Timed:
    """Random batches resident on the device, linear layers with ReLUs between, SGD and the mean squared error."""
    arm, device, shape = arguments.precision, torch.device(arguments.device), (arguments.batch_size, arguments.width)
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high" if arm == "tf32" else "highest")
    dtype = torch.bfloat16 if arm == "pure_bf16" else torch.float32
    batches = [
        (torch.randn(shape, device=device), torch.randn(shape, device=device)) for _ in range(arguments.num_batches + 1)
    ]
    validation = batches.pop()
    layers = [nn.Linear(arguments.width, arguments.width) for _ in range(NUM_LAYERS)]
    model = nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.ReLU(), layer))).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=arm == "amp_fp16")
    taken = 0

    def step() -> None:
        nonlocal taken
        inputs, targets = (tensor.to(dtype) for tensor in batches[taken % len(batches)])
        with torch.autocast(device.type, DTYPES.get(arm), enabled=arm in DTYPES):
            loss = F.mse_loss(model(inputs).float(), targets.float())
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        taken += 1

    timed = time_steps(step, num_steps=arguments.steps, num_warmup_steps=arguments.warmup_steps, device=device)
    with torch.no_grad():
        assert F.mse_loss(model(validation[0].to(dtype)).float(), validation[1]).isfinite()
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", required=True, choices=("fp32", "tf32", *DTYPES, "pure_bf16"))
    parser.add_argument("--device", default="cuda")
    for name in ("width", "batch-size", "num-batches", "steps", "warmup-steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    print(json.dumps(train(parser.parse_args()).figures()))


if __name__ == "__main__":
    main()
