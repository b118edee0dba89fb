"""A loop as anyone writes it, with `ampsweep.record` around it."""

import torch
from torch import nn

import ampsweep

DTYPES = {"fp32": None, "fp64": None, "bf16": torch.bfloat16, "fp16": torch.float16}
STEPS, BATCH = 24, 32


def train(directory, precision="fp32", seed=0, *, steps=STEPS, loss_of=nn.functional.cross_entropy, **settings):
    """Train a small classifier; returns its recording, which has ended, and the parameters."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = model.double() if precision == "fp64" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=precision == "fp16")
    inputs, targets = torch.randn(steps, BATCH, 64, dtype=model[0].weight.dtype), torch.randint(10, (steps, BATCH))
    settings = {"arm": precision, "warmup_steps": 3, "log_every": 5, "samples_per_step": BATCH, **settings}
    with ampsweep.record(
        model=model, optimizer=optimizer, scaler=scaler, seed=seed, directory=directory, **settings
    ) as run:
        for x, y in zip(inputs, targets, strict=True):
            with run.step():
                with torch.autocast("cpu", DTYPES[precision], enabled=DTYPES[precision] is not None):
                    loss = loss_of(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            run.log(loss=loss)
        run.log(val_loss=loss, accuracy=0.5)
    return run, [*model.parameters()]
