"""A training whose steps can be taken again and again from the same state, in any precision."""

import copy
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
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
    """One optimizer step as it was taken; its numbers are on the host."""

    number: int
    """The step of the training, the first is 1."""
    losses: dict[str, float]
    """Those of its turns, by name."""
    scale: float | None
    """The factor that the losses were multiplied by; None without scaler."""
    has_nonfinite_gradients: bool
    """An optimizer took its step with gradients that had inf or NaN."""
    is_skipped: bool
    """The scaler has left out the step of an optimizer."""

    @property
    def loss(self) -> float:
        """The sum of its turns' losses."""
        return sum(self.losses.values())


class KeptBatches:
    """Data that reads each batch once and then has it at hand, so that streams can be replayed, too."""

    def __init__(self, data: Data) -> None:
        self.source = data
        self._kept: dict[int, Any] = {}
        self.batch_size, self.num_train_batches = data.batch_size, data.num_train_batches
        self.tokens_per_batch, self.fingerprint = data.tokens_per_batch, data.fingerprint

    def train_batch(self, index: int) -> Any:
        if index not in self._kept:
            self._kept[index] = self.source.train_batch(index)
        return self._kept[index]

    def forget_before(self, index: int) -> None:
        """Drop the batches before this one: no replay will begin with them again."""
        self._kept = {one: batch for one, batch in self._kept.items() if one >= index}

    def val_batches(self) -> Iterator[Any]:
        yield from self.source.val_batches()

    @property
    def next_unread(self) -> int:
        """The index of the first batch after all that were read."""
        return max(self._kept, default=-1) + 1


def assembled(
    config: Config, device: torch.device, data: Data, checkpoint: FoundCheckpoint | None
) -> tuple[Built, Trainer]:
    """The parts of a training and its trainer, standing before the first step, or after that of a checkpoint."""
    built = build(config, device, data)
    trainer = assemble_trainer(config, built, device)
    if checkpoint is not None:
        resume(trainer, _copied(checkpoint))  # optimizers go on with the tensors that they are given
    trainer.model.train()
    return built, trainer


_UNCOLLECTED_BYTES: Final = 2**28
"""Bytes of parameters of earlier replays that may lie about before they are collected."""


class Replay:
    """The training of `config`, standing before a step, which it can take and take back.

    Two replays of one config, or of two that differ in precision, begin with the same weights and get the same batches.

    Args:
        data: the data of the training, which several replays may share.
        checkpoint: the state to begin with; None: that of the first step.

    Raises:
        UserError: a part refuses its settings.
    """

    _uncollected_bytes: ClassVar[int] = 0
    """Bytes of parameters of replays since garbage was collected, without which a model stays: trainer and instruments
    refer to each other."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        data: KeptBatches,
        checkpoint: FoundCheckpoint | None = None,
    ) -> None:
        if Replay._uncollected_bytes > _UNCOLLECTED_BYTES:
            gc.collect()
            Replay._uncollected_bytes = 0
        self.config, self.device, self.data = config, device, data
        self.built, self.trainer = assembled(config, device, data, checkpoint)
        self.built.precision.scale()  # which a scaler makes when it is first asked: each step calls the same operators
        self.model = self.trainer.model
        Replay._uncollected_bytes += sum(parameter.nbytes for parameter in self.model.parameters())
        self.around_step: Callable[[], AbstractContextManager[None]] = nullcontext
        """Makes a context that each step is taken in."""
        self._has_nonfinite_gradients = False
        for optimizer in self.trainer.optimizers.values():
            optimizer.register_step_pre_hook(self._look_at_gradients)

    @property
    def next_batches(self) -> range:
        """The numbers of the batches of the next step."""
        first, trainer = self.trainer.next_batch, self.trainer
        return range(first, first + trainer.config.grad_accum_steps * len(trainer.turns))

    def read_ahead(self) -> None:
        """Read the batches of the next step, so that reading them is no part of it."""
        for number in self.next_batches:
            self.data.train_batch(number)

    def step(self) -> TakenStep:
        """Take the next step."""
        trainer, precision = self.trainer, self.built.precision
        scale, num_applied = precision.scale(), int(trainer.instruments.applied_steps())
        self._has_nonfinite_gradients = False
        trainer.step += 1
        with precision.flags(), self.around_step():
            taken = trainer.train_step()
        return TakenStep(
            number=trainer.step,
            losses={name: float(loss) for name, loss in taken.losses.items()},
            scale=None if scale is None else float(scale),
            has_nonfinite_gradients=self._has_nonfinite_gradients,
            is_skipped=int(trainer.instruments.applied_steps()) == num_applied,
        )

    def state(self) -> Checkpoint:
        """Copy the state that the next step begins with."""
        copied: Checkpoint = _copied(checkpoint_now(self.trainer))
        return copied

    def restore(self, state: Checkpoint) -> None:
        """Go back to a state, which may be that of a replay in another precision: values are cast."""
        resume(self.trainer, FoundCheckpoint(_copied(state), Path()))

    def _look_at_gradients(self, optimizer: Optimizer, *_: object) -> None:
        """Note whether an optimizer that is about to step has gradients that are not finite; for torch's hook."""
        gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        self._has_nonfinite_gradients |= not all(bool(one.isfinite().all()) for one in gradients)


@dataclass(frozen=True)
class TakenSteps:
    """The steps of a replay, up to the one after which nothing was left to see."""

    steps: tuple[TakenStep, ...]
    error: Exception | None = None
    """The error that the step after the last one raised, such as one of two dtypes that do not fit; None: no error."""


def taken_steps(build: Callable[[], Replay], num_steps: int, end_s: float) -> TakenSteps:
    """Take steps; fewer if one raises an error, or if `time.monotonic` comes to `end_s` after the first."""
    steps: list[TakenStep] = []
    try:
        replay = build()
        while len(steps) < num_steps and (not steps or time.monotonic() < end_s):
            steps.append(replay.step())
    except Exception as error:  # noqa: BLE001  the model's own code may raise anything
        return TakenSteps(tuple(steps), error)
    return TakenSteps(tuple(steps))


def _copied(value: Any) -> Any:
    """A deep copy, of torchao's tensors too, which know no `clone`: of each a new one, of copies of those it packs."""
    copies: dict[int, Any] = {}
    for tensor in tensors_in(value):
        if wraps_others(tensor):
            names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
            parts = {name: getattr(tensor, name).clone() for name in names}
            copies[id(tensor)] = type(tensor).__tensor_unflatten__(parts, context)  # type: ignore[attr-defined]
    return copy.deepcopy(value, copies)
