"""One training, as users of each framework write it: two micro-batches a step, and one evaluation at the end."""

import itertools

import torch
from torch import nn

import ampsweep

WIDTH, BATCH, STEPS = 16, 8, 12
ONE_LINE = {"log_every": 1, "warmup_steps": 3, "experiment": "tiny"}


class Net(nn.Module):
    def __init__(self, autocast=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))
        self._autocast = autocast

    def forward(self, x, labels):
        with torch.autocast("cpu", enabled=self._autocast and torch.is_autocast_enabled("cpu")):
            loss = nn.functional.cross_entropy(self.body(x.to(self.body[0].weight.dtype)), labels)
        return {"loss": loss, "logits": loss.detach().expand(len(x), 1)}


class Batches(torch.utils.data.IterableDataset):
    def __init__(self, steps=STEPS):
        generator = torch.Generator().manual_seed(0)
        self.items = [
            {"x": torch.randn(WIDTH, generator=generator), "labels": torch.tensor(place % 2)}
            for place in range(2 * BATCH * steps)
        ]

    def __iter__(self):
        return iter(self.items)

    def loader(self):
        return torch.utils.data.DataLoader(self, batch_size=BATCH)


def begin(**settings):
    torch.manual_seed(0)
    model = Net(**settings)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), Batches()


def bare(directory, **options):
    model, optimizer, data = begin()
    batches = iter(data.loader())
    with ampsweep.record(model, optimizer, directory=directory, seed=0, **ONE_LINE | options) as run:
        for _ in range(STEPS):
            pair = [next(batches), next(batches)]
            total = 0.0
            with run.step():
                for batch in pair:
                    loss = model(**batch)["loss"] / 2
                    loss.backward()
                    total += loss.detach()
                optimizer.step()
                optimizer.zero_grad()
            run.log(loss=total)
    return run


def transformers(directory, tmp_path, *, evaluate=True, arguments=None, options=None, **settings):
    from transformers import Trainer, TrainingArguments

    from ampsweep.integrations.transformers import AmpsweepCallback

    model, optimizer, data = begin(**settings)
    callback = AmpsweepCallback(directory=directory, **ONE_LINE | (options or {}))
    known = {"max_steps": STEPS, "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 2, "seed": 0}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 4, "save_strategy": "no"}
    exact = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "per_device_eval_batch_size": BATCH}
    every = {"eval_strategy": "steps", "eval_steps": 6} if evaluate else {}
    trainer = Trainer(
        model,
        TrainingArguments(str(tmp_path), **known, **quiet, **exact, **every, **(arguments or {})),
        train_dataset=data,
        eval_dataset=data.items[:BATCH],
        optimizers=(optimizer, None),
        callbacks=[callback],
    )
    trainer.train()
    return callback.run, trainer


def lightning(directory, tmp_path, package="lightning.pytorch", *, options=None, fails=False, **trainer):
    import importlib

    pl = importlib.import_module(package)
    from ampsweep.integrations.lightning import AmpsweepCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.optimizer, _ = begin()

        def training_step(self, batch, place):
            if fails and place == 7:
                raise RuntimeError("the batch is broken")
            loss = self.net(**batch)["loss"]
            self.log("seen_loss", loss)
            return loss

        def validation_step(self, batch, place):
            self.log("val_loss", self.net(**batch)["loss"], batch_size=BATCH)

        def configure_optimizers(self):
            return self.optimizer

    callback, data = AmpsweepCallback(directory=directory, **ONE_LINE | (options or {})), Batches()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(
        **{"max_steps": STEPS, "accumulate_grad_batches": 2, "val_check_interval": 12, "callbacks": [callback]}
        | {"enable_checkpointing": False, "default_root_dir": tmp_path, "limit_val_batches": 1}
        | quiet
        | trainer
    )
    module = Module()
    trainer.fit(module, data.loader(), data.loader())
    return callback.run, trainer


def fabric(directory, tmp_path, *, precision="32-true", options=None):
    from lightning.fabric import Fabric

    from ampsweep.integrations.fabric import AmpsweepCallback

    callback = AmpsweepCallback(directory=directory, **ONE_LINE | (options or {}))
    run = Fabric(accelerator="cpu", devices=1, precision=precision, callbacks=[callback])
    own, plain, data = begin()
    model, optimizer = run.setup(own, plain)
    loader = run.setup_dataloaders(data.loader())
    for place, batch in enumerate(itertools.islice(loader, 2 * STEPS)):
        run.backward(model(**batch)["loss"] / 2)
        if place % 2:
            optimizer.step()
            optimizer.zero_grad()
    own.eval()
    with torch.no_grad():
        run.log("val_loss", model(**next(iter(loader)))["loss"])
    run.call("on_train_end")
    return callback.run, run


def accelerate(directory, tmp_path, *, precision="no", options=None):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from ampsweep.integrations.accelerate import AmpsweepTracker

    AcceleratorState._reset_state(reset_partial_state=True)  # of another test
    tracker = AmpsweepTracker(directory=directory, **ONE_LINE | (options or {}))
    run = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2, log_with=[tracker])
    run.init_trackers("tiny", config={"lr": 1e-3})
    own, plain, data = begin()
    model, optimizer, loader = run.prepare(own, plain, data.loader())
    for batch in itertools.islice(loader, 2 * STEPS):
        with run.accumulate(model):
            run.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    own.eval()
    with torch.no_grad():
        run.log({"val_loss": model(**data.loader().__iter__().__next__())["loss"].item()}, step=STEPS)
    run.end_training()
    return tracker.run, run
