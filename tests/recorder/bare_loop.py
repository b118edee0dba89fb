"""A loop that knows nothing of configs or trainers, and the recorder around it."""

from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from ampsweep.precision import Precision
from ampsweep.record import Identity, RunRecord
from ampsweep.recorder.instruments import Instruments
from ampsweep.recorder.recorder import Recorder
from ampsweep.tracking.tracker import Tracker

STEPS, BATCH = 40, 32


def train(directory: Path, mode: str, seed: int) -> None:
    torch.manual_seed(seed)
    precision = Precision(mode, "cpu")
    model = precision.convert(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(STEPS, BATCH, 64), torch.randint(10, (STEPS, BATCH))
    settings = {"seed": seed, "precision": asdict(precision.config), "trainer": {"warmup_steps": 3}}
    names = {"experiment": "mine", "model": "mlp", "task": "classification", "data": "noise", "optimizer": "adamw"}
    record = RunRecord(
        run_id=f"{mode}-{seed}", arm=mode, pair_key=f"mine-{seed}", config_hash=f"{mode}-{seed}", config=settings,
        identity=Identity(**names, precision_mode=mode, dtype=precision.config.dtype, batch_size=BATCH, lr=1e-3,
                          grad_accum_steps=1, steps=STEPS, compile=False, channels_last=False, seed=seed, device="cpu"),
    )  # fmt: skip
    rest = {"warmup_steps": 3, "samples_per_step": BATCH, "tokens_per_step": None, "is_fused": False}
    instruments = Instruments(model, [optimizer], precision, None, **rest)
    recorder = Recorder(instruments, precision, record=record, tracker=Tracker(), directory=directory)
    with precision.flags(), recorder as run:
        for number, (x, y) in enumerate(zip(inputs, targets, strict=True), 1):
            with run.step():
                with precision.autocast():
                    loss = nn.functional.cross_entropy(model(x.to(precision.parameters_dtype)), y)
                precision.backward(loss)
                precision.step(optimizer)
                precision.update()
                run.count_update()
                optimizer.zero_grad()
            value = loss.detach()
            run.log({"train/loss": value, "val/loss": value} if number == STEPS else {"train/loss": value})
