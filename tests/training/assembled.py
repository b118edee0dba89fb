"""Trainings composed, built and assembled as a run does it, in this process, with everything they say kept."""

import copy
import functools
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ampsweep.config.compose import compose_one
from ampsweep.config.schema import Config
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import Built, build, build_data
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume, take_checkpoint
from ampsweep.training.trainer import Ending, Trainer

CPU = torch.device("cpu")
MLP = ("model=mlp_small", "model.hidden_size=16", "data=digits", "data.batch_size=16")
GPT = (
    "model=gpt_tiny",
    *(f"model.{size}" for size in ("hidden_size=16", "num_heads=2", "num_layers=1", "dropout=0.2")),
    "data=synthetic_tokens",
    *(f"data.{size}" for size in ("vocab_size=16", "seq_len=8", "batch_size=4", "num_batches=64")),
)
"""Small, with dropout, so that the generators of random numbers count."""
LOGGED = ("trainer.log_every=1", "trainer.warmup_steps=2", "device=cpu", "tracking=disabled")


class Rows:
    """Keeps rows in a list, in place of a tracker."""

    def __init__(self, rows=(), log=None):
        self.log = log or (lambda row, step: rows.append({"step": step, **row}))


class NoStop:
    """Nobody asks the run to end."""

    reason = ""


@dataclass
class StopAfter:
    """Asks the run to end after so many steps; it is asked once a step."""

    num_steps: int

    @property
    def reason(self):
        self.num_steps -= 1
        return "SIGTERM" if self.num_steps <= 0 else ""


@dataclass
class Assembled:
    """One training: its parts, and what it logged and saved."""

    config: Config
    built: Built
    trainer: Trainer
    rows: list = field(default_factory=list)
    """What was logged, with its step."""
    saved: list = field(default_factory=list)
    """Steps after which a checkpoint was written."""

    def use_loss(self, loss):
        """Train by another loss."""
        self.trainer.turns = tuple(replace(turn, loss=loss) for turn in self.trainer.turns)

    def train(self, stop=None) -> Ending:
        with self.trainer.instruments:
            return self.trainer.train(stop or NoStop())

    def column(self, key):
        return {row["step"]: row[key] for row in self.rows if key in row}

    def keep(self, directory: Path) -> Path:
        """Write a checkpoint."""
        return take_checkpoint(self.trainer, directory, "hash", "my_model", "my_arm")

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.built.model.parameters()]


@functools.cache
def composed(*overrides) -> Config:
    return compose_one(overrides)  # a quarter of a second, and often the same in one test


def assemble(*overrides, directory: Path | None = None, **parts) -> Assembled:
    """A training with these overrides; checkpoints go to `directory`, `parts` replace the trainer's own."""
    config = copy.deepcopy(composed(*LOGGED, *overrides))
    built = build(config, CPU, build_data(config, CPU))
    rows, saved = [], []

    def save(trainer):
        saved.append(trainer.step)
        if directory is not None:
            take_checkpoint(trainer, directory, "hash", "my_model", "my_arm")

    trainer = assemble_trainer(
        config,
        built,
        CPU,
        tracker=Rows(rows),
        save=save,
        may_watch=True,
    )
    training = Assembled(config, built, trainer, rows, saved)
    for name, part in parts.items():
        setattr(trainer, name, part)
    if "task" in parts:
        training.use_loss(parts["task"].loss)
    return training


def resumed(directory: Path, *overrides) -> tuple[Assembled, list[str]]:
    """A training with these overrides that goes on from the checkpoint in `directory`, and what was said about it."""
    return resumed_from(directory / "checkpoints/last.pt", *overrides)


def resumed_from(file: Path, *overrides) -> tuple[Assembled, list[str]]:
    """The same from a checkpoint's file."""
    training = assemble(*overrides)
    return training, resume(training.trainer, find_checkpoint(file), "hash")
