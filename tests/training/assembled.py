"""Trainings composed, built and assembled as a run does it, in this process, with their rows and checkpoints kept."""

import copy
import functools
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ampsweep.config.compose import _Composer, compose_one, initialized
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
COMPOSER = _Composer([])
"""Calls Hydra (a third of a second) once for each choice of options, and sets values afterwards."""


class Rows:
    """Keeps rows in a list, in place of a tracker."""

    def __init__(self, rows=(), log=None):
        self.log = log or (lambda row, step: rows.append({"step": step, **row}))


class NoStop:
    reason = ""


@dataclass
class StopAfter:
    """Requests the end of a training after so many steps; it is asked once a step."""

    num_steps: int

    @property
    def reason(self):
        self.num_steps -= 1
        return "SIGTERM" if self.num_steps <= 0 else ""


@dataclass
class Assembled:
    """A training: its parts, its rows (with the step), and the steps after which it was saved."""

    config: Config
    built: Built
    trainer: Trainer
    rows: list = field(default_factory=list)
    saved: list = field(default_factory=list)

    @property
    def instruments(self):
        return self.trainer.instruments

    def use_loss(self, loss):
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
    if any(override.startswith("hydra") for override in overrides):
        return compose_one(overrides)
    with initialized():
        return COMPOSER.point(overrides).config


def assemble(*overrides, directory: Path | None = None, device=CPU, **parts) -> Assembled:
    """Assemble a training; checkpoints go to `directory`, and `parts` replace attributes of the trainer."""
    config = copy.deepcopy(composed(*LOGGED, *overrides))
    built = build(config, device, build_data(config, device))
    rows, saved = [], []

    def save(trainer):
        saved.append(trainer.step)
        if directory is not None:
            take_checkpoint(trainer, directory, "hash", "my_model", "my_arm")

    trainer = assemble_trainer(config, built, device, tracker=Rows(rows), save=save, may_watch=True)
    training = Assembled(config, built, trainer, rows, saved)
    for name, part in parts.items():
        setattr(trainer, name, part)
    if "task" in parts:
        training.use_loss(parts["task"].loss)
    return training


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
    for key in ("train/loss", "train/grad_norm", "train/lr", "val/loss", "amp/scale", "amp/growth_tracker",
                "amp/skipped_steps", "amp/applied_steps"):  # fmt: skip
        expected = {step: value for step, value in whole.column(key).items() if step > stop_after}
        assert str(rest.column(key)) == str(expected), key  # as text, since NaN is not equal to itself
    assert all(map(torch.equal, rest.parameters(), whole.parameters()))
    return whole
