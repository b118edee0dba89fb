"""Trainings of two ranks whose checkpoints are compared, with every kind of state.

Parameters that two ranks cannot share evenly, tied ones, buffers of each rank, random numbers, two optimizers, a scale
that backs off.
"""

import resource
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from trainings import CPU, strategy_of

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import ParallelConfig
from ampsweep.parallel.base import SINGLE
from ampsweep.training.checkpoint import rng_state
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume, take_checkpoint

SETTINGS = replace(PRECISION_MODES["amp_fp16"], init_scale=2.0**20, growth_interval=4)
"""Each of the first steps is skipped, until the scale fits."""
STEPS, SAVED_AT = 12, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 6))
        self.single = nn.Linear(6, 1)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.inner(self.embedding(tokens))
        return self.head(hidden) + self.single(hidden)


class Counts:
    """Stands for a trainer's instruments."""

    def __init__(self, precision):
        self.precision, self.applied = precision, 0

    def applied_steps(self):
        return self.applied

    def state_dict(self):
        return {"num_observed": 1, "skipped_steps": 0, "growth_tracker": 0}

    observed = staticmethod(dict)

    def go_on(self, observed, step, *, is_same_run):
        pass

    def load_state_dict(self, state, *, applied_steps):
        self.applied = applied_steps


class Training:
    """A training as checkpoints see it, by one of the strategies `single`, `ddp` and `fsdp2`."""

    def __init__(self, strategy="single", rank=None, batch_size=4):
        torch.manual_seed(0)
        config = ParallelConfig(strategy=strategy, blocks=["inner"], mixed_precision="autocast")
        self.parallel = SINGLE if rank is None else strategy_of(rank, SimpleNamespace(parallel=config))
        self.precision = self.parallel.precision(SETTINGS, CPU)
        self.model = net = self.parallel.distribute(Net(), self.precision)
        tied, rest = [], []
        for name, parameter in net.named_parameters():
            (tied if name.startswith("embedding") else rest).append(parameter)
        self.optimizers = {
            "body": torch.optim.AdamW(rest, lr=1e-2),
            "embedding": torch.optim.SGD(tied, lr=1e-2, momentum=0.9),
        }
        self.instruments = Counts(self.precision)
        self.data = SimpleNamespace(batch_size=batch_size)
        self.step = self.next_batch = 0
        self.num_steps = STEPS
        torch.manual_seed(100 + self.parallel.rank)

    def train(self, until):
        self.model.train()
        while self.step < until:
            self.step += 1
            place = self.next_batch * self.parallel.world_size + self.parallel.rank
            tokens = torch.randint(7, (self.data.batch_size,), generator=torch.Generator().manual_seed(place))
            self.next_batch += 1
            with self.precision.autocast():
                loss = nn.functional.cross_entropy(self.model(tokens), tokens)
            self.precision.backward(loss)
            before = self.precision.scaler.get_scale()
            for optimizer in self.optimizers.values():
                self.precision.step(optimizer)
                optimizer.zero_grad()
            self.precision.update()
            self.instruments.applied += self.precision.scaler.get_scale() >= before
        return self

    def save(self, directory):
        directory.mkdir(exist_ok=True)
        return take_checkpoint(self, directory, "hash", "net", "arm")

    def resumed(self, path):
        self.notes = resume(self, find_checkpoint(path, self.parallel))
        return self

    def facts(self):
        """Everything that a checkpoint holds, with whole tensors."""
        return {
            "model": whole(self.model.state_dict()),
            "optimizers": {name: whole(optimizer.state_dict()) for name, optimizer in self.optimizers.items()},
            "scaler": self.precision.state_dict(),
            "step": self.step,
            "next_batch": self.next_batch,
            "applied": self.instruments.applied,
            "rng": rng_state(CPU)["torch"],
            "notes": getattr(self, "notes", []),
        }


def whole(value):
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value


def without_room(training, directory, is_here):
    """Save with a limit of this rank's file size; returns the error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000 if is_here else limits[0], limits[1]))
    try:
        training.save(directory)
    except OSError as error:
        return error.errno, error.strerror, error.filename
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def save_and_resume(rank, place):
    """Train by each strategy in `place`, and leave the facts there."""
    facts = {}
    for strategy in ("ddp", "fsdp2"):
        training = Training(strategy, rank).train(SAVED_AT)
        training.save(place / strategy)
        facts[strategy, "saved"] = training.facts()
        facts[strategy, "unbroken"] = training.train(STEPS).facts()
        again = Training(strategy, rank).resumed(place / strategy)
        facts[strategy, "restored"] = again.facts()
        facts[strategy, "resumed"] = again.train(STEPS).facts()
    for saved, strategy in (("ddp", "fsdp2"), ("fsdp2", "ddp"), ("single", "ddp"), ("single", "fsdp2")):
        again = Training(strategy, rank).resumed(place / saved)
        facts[saved, strategy] = again.facts()
        again.train(STEPS)
    training = Training("fsdp2", rank).train(1)
    for full in (0, 1):
        facts["no room", full] = [without_room(training, place / "full", full == rank) for _ in range(2)]
        training.save(place / "full")
    torch.save(facts, place / f"facts-{rank}.pt")
