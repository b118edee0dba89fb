"""A training whose steps can be repeated from the same state, in any precision."""

import copy
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch.optim import Optimizer

from ampsweep.config.schema import Config
from ampsweep.data.base import Data
from ampsweep.nested_tensors import tensors_in, wraps_others
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.checkpoint import Checkpoint
from ampsweep.training.components.built import Built, build
from ampsweep.training.found_checkpoint import FoundCheckpoint
from ampsweep.training.resume import checkpoint_now, resume
from ampsweep.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class TakenStep:
    """A completed optimizer step; its numbers are on the host."""

    number: int  # the step of the training, from 1
    loss: float  # the sum over its turns
    scale: float | None  # the loss scale; None without a scaler
    has_nonfinite_gradients: bool  # an optimizer stepped with gradients that had inf or NaN
    is_skipped: bool  # the scaler skipped an optimizer's step


class OutOfTimeError(BaseException):
    """Raised by what would begin after the deadline; no `Exception`, which stands for an error of the user's code."""


class KeptBatches:
    """Data that reads each batch once and keeps it, so that streams can be replayed, too. Every step begins with a
    batch: after the deadline, in `time.monotonic`, it gives none and raises OutOfTimeError."""

    def __init__(self, data: Data, deadline_s: float = math.inf) -> None:
        self.source, self.deadline_s = data, deadline_s
        self._kept: dict[int, Any] = {}
        self.batch_size, self.num_train_batches = data.batch_size, data.num_train_batches
        self.tokens_per_batch, self.fingerprint = data.tokens_per_batch, data.fingerprint

    @property
    def seconds_left(self) -> float:
        return self.deadline_s - time.monotonic()

    def check_time(self) -> None:
        if self.seconds_left < 0:
            raise OutOfTimeError

    def train_batch(self, index: int) -> Any:
        self.check_time()
        if index not in self._kept:
            self._kept[index] = self.source.train_batch(index)
        return self._kept[index]

    def forget_before(self, index: int) -> None:
        """Drop earlier batches: no replay will start from them again."""
        self._kept = {kept: batch for kept, batch in self._kept.items() if kept >= index}

    def val_batches(self) -> Iterator[Any]:
        for batch in self.source.val_batches():
            self.check_time()
            yield batch

    @property
    def next_unread(self) -> int:
        return max(self._kept, default=-1) + 1


def assembled(
    config: Config, device: torch.device, data: KeptBatches, saved: FoundCheckpoint | None
) -> tuple[Built, Trainer]:
    """The components of a training and its trainer, before the first step or right after a checkpoint."""
    data.check_time()
    built = build(config, device, data)
    trainer = assemble_trainer(config, built, device)
    if saved is not None:
        resume(trainer, _copied(saved))  # optimizers continue with the tensors that they are given
    trainer.model.train()
    return built, trainer


_UNCOLLECTED_BYTES: Final = 2**28


class Replay:
    """The training of `config` before a step, which it can take and take back, from a checkpoint or the initial state.
    Replays of the same config, or of configs that differ in precision, have the same initial weights and batches."""

    _uncollected_bytes: ClassVar[int] = 0  # of parameters of earlier replays

    def __init__(
        self, config: Config, device: torch.device, data: KeptBatches, checkpoint: FoundCheckpoint | None = None
    ) -> None:
        if Replay._uncollected_bytes > _UNCOLLECTED_BYTES:  # trainers and instruments refer to each other and stay
            gc.collect()
            Replay._uncollected_bytes = 0
        self.config, self.device, self.data = config, device, data
        self.built, self.trainer = assembled(config, device, data, checkpoint)
        self.built.precision.scale()  # makes a scaler create it now, so that each step calls the same operators
        self.model = self.trainer.model
        Replay._uncollected_bytes += sum(parameter.nbytes for parameter in self.model.parameters())
        self._has_nonfinite_gradients = False
        for optimizer in self.trainer.optimizers.values():
            optimizer.register_step_pre_hook(self._check_gradients)

    @property
    def next_batches(self) -> range:
        first, trainer = self.trainer.next_batch, self.trainer
        return range(first, first + trainer.config.grad_accum_steps * len(trainer.turns))

    def read_ahead(self) -> None:
        """Read the batches of the next step, so that the step does not."""
        for number in self.next_batches:
            self.data.train_batch(number)

    def step(self) -> TakenStep:
        trainer, precision = self.trainer, self.built.precision
        scale, num_applied = precision.scale(), int(trainer.instruments.applied_steps())
        self._has_nonfinite_gradients = False
        trainer.step += 1
        with precision.flags():
            taken = trainer.train_step()
        return TakenStep(
            number=trainer.step,
            loss=sum(map(float, taken.losses.values())),
            scale=None if scale is None else float(scale),
            has_nonfinite_gradients=self._has_nonfinite_gradients,
            is_skipped=int(trainer.instruments.applied_steps()) == num_applied,
        )

    def state(self) -> Checkpoint:
        copied: Checkpoint = _copied(checkpoint_now(self.trainer))
        return copied

    def restore(self, state: Checkpoint) -> None:
        """Go back to a state; values from a replay in another precision are cast."""
        resume(self.trainer, FoundCheckpoint(_copied(state), Path()))

    def _check_gradients(self, optimizer: Optimizer, *_: object) -> None:
        gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        self._has_nonfinite_gradients |= not all(bool(gradient.isfinite().all()) for gradient in gradients)


@dataclass(frozen=True)
class TakenSteps:
    steps: tuple[TakenStep, ...]
    error: Exception | None = None  # the error that the next step raised; None if none did


def taken_steps(build: Callable[[], Replay], num_steps: int, end_s: float = math.inf) -> TakenSteps:
    """Take steps; fewer if one raises an error, or if `time.monotonic` reaches `end_s` or the deadline after the first.
    OutOfTimeError: there is no time for the first."""
    steps, error = list[TakenStep](), None
    try:
        replay = build()
        while len(steps) < num_steps and (not steps or time.monotonic() < end_s):
            steps.append(replay.step())
    except OutOfTimeError:
        if not steps:
            raise
    except Exception as raised:  # noqa: BLE001  the model's own code may raise anything
        error = raised
    return TakenSteps(tuple(steps), error)


def _copied(value: Any) -> Any:
    """A deep copy. torchao's tensors have no `clone`: each is rebuilt from copies of the tensors that it wraps."""
    copies: dict[int, Any] = {}
    for tensor in tensors_in(value):
        if wraps_others(tensor):
            names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
            inner = {name: getattr(tensor, name).clone() for name in names}
            copies[id(tensor)] = type(tensor).__tensor_unflatten__(inner, context)  # type: ignore[attr-defined]
    return copy.deepcopy(value, copies)
