"""A training with some of its parts changed: the trials of the doctor, taken from the same state and batches."""

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.loss.function_calls import CalledFunction, calls_in_float32
from ampsweep.doctor.patient import Patient, TakenSteps
from ampsweep.doctor.replay import Replay, TakenStep

Kept = str | CalledFunction
"""A thing that is kept in float32: a module by its name, with all within it, or calls of functions."""

_REFUSALS: Final = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError)
"""Errors of a model's own code that a change of precision may bring."""


@dataclass(frozen=True)
class Variant:
    """The changes of a trial."""

    kept: frozenset[Kept] = frozenset()
    """Kept in float32 under autocast."""
    precision: PrecisionConfig | None = None
    """None: that of the training."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the optimizer."""

    def replay(self, patient: Patient) -> "VariantReplay":
        """Build the training with these changes.

        Raises:
            UserError: a part refuses its settings.
        """
        config = patient.config
        precision = self.precision or config.precision
        names = sorted(glob.escape(one) for one in self.kept if isinstance(one, str))
        if names:
            precision = replace(precision, fp32_modules=[*precision.fp32_modules, *names])
        optimizer = {**config.optimizer, **self.optimizer} if self.optimizer else config.optimizer
        changed = replace(config, precision=precision, optimizer=optimizer)
        return VariantReplay(
            Replay(changed, patient.device, patient.data, patient.checkpoint),
            frozenset(one for one in self.kept if isinstance(one, CalledFunction)),
        )

    def steps(self, patient: Patient, num_steps: int) -> TakenSteps:
        """Take steps; fewer if one raises an error, or if time is up."""
        steps: list[TakenStep] = []
        try:
            replay = self.replay(patient)
            while len(steps) < num_steps and (not steps or patient.seconds_left > 0):
                steps.append(replay.step())
        except _REFUSALS as error:
            return TakenSteps(tuple(steps), error)
        return TakenSteps(tuple(steps))


class VariantReplay:
    """A replay some of whose function calls are computed in float32."""

    def __init__(self, replay: Replay, calls: frozenset[CalledFunction]) -> None:
        self.replay, self._calls = replay, calls

    def step(self) -> TakenStep:
        """Take the next step."""
        with calls_in_float32(self.replay.model, self._calls, self.replay.device.type):
            return self.replay.step()
