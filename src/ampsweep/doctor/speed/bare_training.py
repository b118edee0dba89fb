"""A training as it runs without a doctor, whose steps can be timed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import assembled
from ampsweep.tracing.feeding import map_tensors
from ampsweep.tracing.ledger import tensors_in

_NUM_BATCHES: Final = 2
"""Batches of each kind that timed steps take in turn: reading them is no part of the step."""


class BareTraining:
    """A training of the patient that has no hooks of a replay and reads no loss; its batches are at hand.

    It runs eagerly, also where the training is compiled: only so its operators can be told apart.

    Raises:
        UserError: a part refuses its settings.
    """

    def __init__(self, patient: Patient, precision: PrecisionConfig) -> None:
        config = replace(patient.config, precision=precision)
        self.precision, self.device = precision, patient.device
        built, self.trainer = assembled(config, patient.device, patient.data, patient.checkpoint)
        self.model = self.trainer.model
        self._flags = built.precision.flags
        num_micro_batches = config.trainer.grad_accum_steps * len(built.turns)
        first = self.trainer.next_batch
        self.batches = [patient.data.train_batch(first + i) for i in range(_NUM_BATCHES * num_micro_batches)]
        self.num_micro_batches = num_micro_batches
        self.trainer.data = _Repeated(self.trainer.data, self.batches)

    def step(self, *, eager: bool = True) -> None:
        """Take a step; on an accelerator it may go on when this returns."""
        self.trainer.step += 1
        with self._flags(), torch.compiler.set_stance("force_eager" if eager else "default"):
            self.trainer.train_step()

    @property
    def data_wait_s(self) -> float:
        """Seconds that steps have waited for their batches so far."""
        return self.trainer.instruments.data_wait_s

    @contextmanager
    def on(self, data: Any, first: int = 0) -> Iterator[None]:
        """Take steps on other data, from its batch of this number on."""
        former, self.trainer.data = self.trainer.data, data
        self.trainer.next_batch = max(first, self.trainer.next_batch)
        try:
            yield
        finally:
            self.trainer.data = former

    def step_on(self, batches: Sequence[Any]) -> None:
        """Take a step on other batches, in turn."""
        with self.on(_Repeated(self.trainer.data, batches)):
            self.step()


class _Repeated:
    """Data that has a few batches at hand, in turn."""

    def __init__(self, data: Any, batches: Sequence[Any]) -> None:
        self._batches = batches
        self.batch_size, self.num_train_batches = data.batch_size, data.num_train_batches
        self.tokens_per_batch, self.fingerprint = data.tokens_per_batch, data.fingerprint

    def train_batch(self, index: int) -> Any:
        return self._batches[index % len(self._batches)]

    def val_batches(self) -> Iterator[Any]:
        yield from ()


def doubled(batches: Sequence[Any]) -> list[Any]:
    """Batches of twice the size: each is put together with the next one, along the first dimension of its tensors."""
    following = [*batches[1:], batches[0]]
    return [_joined(one, other) for one, other in zip(batches, following, strict=True)]


def halved(batches: Sequence[Any]) -> list[Any]:
    """The first half of each batch, along the first dimension of its tensors."""
    return [
        map_tensors(one, lambda tensor: tensor[: max(1, len(tensor) // 2)] if tensor.dim() else tensor)
        for one in batches
    ]


def _joined(one: Any, other: Any) -> Any:
    remaining = iter([*tensors_in(other)])

    def joined(tensor: torch.Tensor) -> torch.Tensor:
        partner = next(remaining)
        return torch.cat([tensor, partner]) if tensor.dim() else tensor

    return map_tensors(one, joined)
