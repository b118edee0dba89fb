"""The same training by hand and by each framework; every function trains it once and returns its last loss."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workload import LEARNING_RATE, SEED, WEIGHT_DECAY, Batches, Size, fresh

NUM_METRICS = 10
"""Metrics in a row that is logged by hand; the suite logs what it logs, and at least as many."""


def bare_wandb(size: Size, directory: Path) -> float:
    import wandb

    run = wandb.init(mode="offline", dir=str(directory), settings=wandb.Settings(silent=True, console="off"))
    rest = {f"metric/{number}": float(number) for number in range(NUM_METRICS - 1)}
    last = bare(size, directory, after_step=lambda loss: run.log({"train/loss": loss.item(), **rest}))
    run.finish()
    return last


def bare(size: Size, directory: Path, after_step: Callable[[Tensor], Any] | None = None) -> float:
    model, data, optimizer = fresh(size)
    for index in range(size.num_steps):
        inputs, targets = data.train_batch(index)
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if after_step is not None:
            after_step(loss)
    return loss.item()


def ampsweep(size: Size, directory: Path, *, log_every: int) -> float:
    """`train.py`'s own path from a composed config to the record, with W&B, the progress bar and all."""
    from ampsweep.config.compose import compose_points
    from ampsweep.launch.signal_handlers import StopRequest
    from ampsweep.records import read_history
    from ampsweep.run.lifecycle import run_once
    from ampsweep.run.request import RunRequest
    from ampsweep.sweep.plan import Plan
    from ampsweep.sweep.progress.display import ProgressDisplay
    from ampsweep.tracking.wandb.process import WandbProcess

    points = compose_points(ampsweep_overrides(size, log_every=log_every), multirun=False).points
    config, display = points[0].config, ProgressDisplay(Plan(points), in_training_process=True)
    with WandbProcess() as wandb, StopRequest() as stop, display:
        display.run_begins(config)
        request = RunRequest(config, directory, wandb=wandb.address)
        status = run_once(request, send=display.on_message, stop=stop)
    assert status == "completed", status
    return float(read_history(directory)[-1]["train/loss"])


def own_estimate(directory: Path) -> dict[str, float]:
    """What the suite says of itself: its overhead, and how many metrics a row has; of other variants nothing."""
    if not (directory / "run.json").exists():
        return {}
    from ampsweep.records import RunRecord, read_history

    *_, row, _ = read_history(directory)
    num_metrics = len(row) - 1  # the step is none
    assert num_metrics >= NUM_METRICS, f"fewer than {NUM_METRICS} metrics in a row: {sorted(row)}"
    summary = RunRecord.read(directory).summary
    return {"reported_overhead_pct": summary["instrumentation/overhead_pct"], "num_metrics": num_metrics}


def ampsweep_overrides(size: Size, *, log_every: int) -> list[str]:
    """The command line of `train.py` for this training."""
    return [
        *("model=custom", "model._target_=workload.Net", "data=custom", "data._target_=workload.Batches"),
        *(f"+model.features={size.features}", f"+model.hidden={size.hidden}", f"+data.features={size.features}"),
        *(f"data.batch_size={size.batch_size}", "task=regression", f"seed={SEED}", "device=cpu"),
        *(f"optimizer.lr={LEARNING_RATE}", f"optimizer.weight_decay={WEIGHT_DECAY}", "tracking.mode=offline"),
        *(f"trainer.steps={size.num_steps}", f"trainer.log_every={log_every}"),
    ]


def lightning(size: Size, directory: Path) -> float:
    import lightning
    from lightning.pytorch.loggers import WandbLogger

    model, data, optimizer = fresh(size)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            inputs, targets = batch
            loss = F.mse_loss(self.model(inputs), targets)
            self.log("train/loss", loss)
            self.last = loss.detach()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=size.num_steps,
        logger=WandbLogger(save_dir=directory, offline=True),
        log_every_n_steps=10,
        **dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    )
    trainer.fit(module := Module(), Stream(data))
    return module.last.item()


def huggingface(size: Size, directory: Path) -> float:
    from transformers import Trainer, TrainingArguments

    model, data, optimizer = fresh(size)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            loss = F.mse_loss(self.model(inputs), targets)
            self.last = loss.detach()
            return {"loss": loss}

    class WithBatches(Trainer):
        def get_train_dataloader(self) -> Any:
            return Stream(data, names=("inputs", "targets"))

    arguments = TrainingArguments(
        output_dir=str(directory),
        use_cpu=True,
        max_steps=size.num_steps,
        logging_steps=10,
        max_grad_norm=0.0,
        report_to="wandb",
        save_strategy="no",
        disable_tqdm=True,
    )
    wrapped = WithLoss()
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    WithBatches(wrapped, arguments, optimizers=(optimizer, constant)).train()
    return wrapped.last.item()


class Stream:
    """The batches as an endless loader."""

    def __init__(self, data: Batches, names: tuple[str, str] | None = None) -> None:
        self._data, self._names = data, names

    def __iter__(self) -> Iterator[Any]:
        for index in itertools.count():
            batch = self._data.train_batch(index)
            yield batch if self._names is None else dict(zip(self._names, batch, strict=True))
