"""Trainings composed, built and assembled as a run does it, in this process, with their rows and checkpoints kept."""

import copy
import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import torch

from ampsweep.config.compose import _Composer, compose_one, initialized
from ampsweep.config.schema import Config
from ampsweep.data.base import stop_workers
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import Built, build, build_data
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume, take_checkpoint
from ampsweep.training.trainer import Ending, Trainer

CPU = torch.device("cpu")
DIGITS = ("data=digits", "data.batch_size=16")
MLP = ("model=mlp_small", "model.hidden_size=16", *DIGITS)
GPT = (
    *("model=gpt_tiny", "model.hidden_size=16", "model.num_heads=2", "model.num_layers=1", "model.dropout=0.2"),
    *("data=synthetic_tokens", "data.vocab_size=16", "data.seq_len=8", "data.batch_size=4", "data.num_batches=64"),
)
"""Small, with dropout, so that the generators of random numbers count."""
LOGGED = ("trainer.log_every=1", "trainer.warmup_steps=2", "device=cpu", "tracking=disabled")
COMPOSER = _Composer([])
"""Calls Hydra (a third of a second) once for each choice of options, and sets values afterwards."""


class StopAfter:
    """Requests the end of a training after so many steps; it is asked once a step."""

    def __init__(self, num_steps):
        self._reasons = iter([""] * (num_steps - 1))

    reason = property(lambda self: next(self._reasons, "SIGTERM"))


@dataclass
class Assembled:
    """A training: its parts, its rows (with the step), and the steps after which it was saved."""

    config: Config
    built: Built
    trainer: Trainer
    rows: list = field(default_factory=list)
    saved: list = field(default_factory=list)

    instruments = property(lambda self: self.trainer.instruments)

    @property
    def optimizer(self):
        (optimizer,) = self.built.optimizers.values()
        return optimizer

    def use_loss(self, loss):
        self.trainer.turns = tuple(replace(turn, loss=loss) for turn in self.trainer.turns)

    def train(self, stop=None) -> Ending:
        with self.trainer.instruments:
            return self.trainer.train(stop or SimpleNamespace(reason=""))

    def column(self, key):
        return {row["step"]: row[key] for row in self.rows if key in row}

    def keep(self, directory: Path) -> Path:
        """Write a checkpoint."""
        return take_checkpoint(self.trainer, directory, "hash", "my_model", "my_arm")

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.built.model.parameters()]


@functools.cache
def composed(*overrides) -> Config:
    if any(override.startswith("hydra") for override in overrides):
        return compose_one(overrides)
    with initialized():
        return COMPOSER.point(overrides).config


def assemble(*overrides, directory: Path | None = None, device=CPU, **parts) -> Assembled:
    """Assemble a training; checkpoints go to `directory`, and `parts` replace attributes of the trainer."""
    config = copy.deepcopy(composed(*LOGGED, *overrides))
    built = build(config, device, build_data(config, device))
    rows, saved = [], []

    def save(_):
        saved.append(trainer.step)
        if directory is not None:
            training.keep(directory)

    tracker = SimpleNamespace(log=lambda row, step: rows.append({"step": step, **row}))
    trainer = assemble_trainer(config, built, device, tracker=tracker, save=save, may_watch=True)
    training = Assembled(config, built, trainer, rows, saved)
    for name, part in parts.items():
        setattr(trainer, name, part)
    if "task" in parts:
        training.use_loss(parts["task"].loss)
    return training


def own(module, name, *more):
    """Overrides for a model of a test's module on the digits."""
    return ("model=custom", f"model._target_={module}.{name}", *DIGITS, *more)


def trained(*overrides, **parts) -> Assembled:
    """Assemble a training and run it to its end."""
    training = assemble(*overrides, **parts)
    assert training.train().status == "completed"
    return training


def resumed(directory: Path, *overrides) -> tuple[Assembled, list[str]]:
    """Assemble a training that resumes from a checkpoint or run directory; returns it and the notes for the user."""
    training = assemble(*overrides)
    return training, resume(training.trainer, find_checkpoint(directory), "hash")


def assert_resumes_bitwise(directory, *overrides, stop_after=5) -> Assembled:
    """Train without a break, and stopped and resumed, and compare every figure; returns the whole training."""
    whole = trained(*overrides)
    assemble(*overrides, directory=directory).train(StopAfter(stop_after))
    rest, notes = resumed(directory, *overrides)
    assert rest.train().status == "completed"
    assert notes == []
    amp = (f"amp/{name}" for name in ("scale", "growth_tracker", "skipped_steps", "applied_steps"))
    for key in ("train/loss", "train/grad_norm", "train/lr", "val/loss", *amp):
        expected = {step: value for step, value in whole.column(key).items() if step > stop_after}
        assert str(rest.column(key)) == str(expected), key  # as text, since NaN is not equal to itself
    for training in (whole, rest):
        stop_workers(training.built.data)
    assert all(map(torch.equal, rest.parameters(), whole.parameters()))
    return whole
