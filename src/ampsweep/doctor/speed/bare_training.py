"""A training as it runs without a doctor, whose steps can be timed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from ampsweep.config.schema import PrecisionConfig
from ampsweep.data.base import Data
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import KeptBatches, assembled
from ampsweep.nested_tensors import map_tensors

_NUM_BATCHES: Final = 2
"""Batches of each kind that timed steps take in turn."""


class BareTraining:
    """The patient's training without the hooks of a replay; it reads no loss, and its batches are at hand.

    It runs eagerly, also where the training is compiled, so that its operators can be told apart.

    Raises:
        UserError: a part refuses its settings.
    """

    def __init__(self, patient: Patient, precision: PrecisionConfig) -> None:
        config = replace(patient.config, precision=precision)
        self.precision, self.device = precision, patient.device
        built, self.trainer = assembled(config, patient.device, patient.data, patient.checkpoint)
        self.model = self.trainer.model
        self._flags = built.precision.flags
        self.num_micro_batches = config.trainer.grad_accum_steps * len(built.turns)
        first, number = self.trainer.next_batch, _NUM_BATCHES * self.num_micro_batches
        self.batches = [patient.data.train_batch(first + i) for i in range(number)]
        self._data = Repeated(patient.data, self.batches)

    def step(self, data: Data | None = None) -> None:
        """Take a step, on other data if any is given; on an accelerator it may go on when this returns."""
        self.trainer.data = data or self._data
        self.trainer.step += 1
        with self._flags(), torch.compiler.set_stance("force_eager"):
            self.trainer.train_step()


class Repeated(KeptBatches):
    """Data with a few batches, which are read in turn."""

    def __init__(self, data: Data, batches: Sequence[Any]) -> None:
        super().__init__(data)
        self._batches = batches

    def train_batch(self, index: int) -> Any:
        return self._batches[index % len(self._batches)]


def doubled(batch: Any) -> Any:
    """The batch twice, one after the other, along the first dimension of its tensors."""
    return map_tensors(batch, lambda tensor: torch.cat([tensor, tensor]) if tensor.dim() else tensor)
