"""The training that the doctor examines: what every examination starts from."""

import math
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config, PrecisionConfig
from ampsweep.doctor.replay import KeptBatches, Replay, TakenSteps, taken_steps
from ampsweep.record.numerics import RunNumerics
from ampsweep.training.found_checkpoint import FoundCheckpoint

_SHARE: Final = 0.1
"""The share of the time left that a first look at the steps may take: of large models it sees fewer of them."""

_STEPS_BEFORE: Final = 2
"""Right steps that are left before the fault, at least: what leads to it shows in them."""


class NotExaminedError(Exception):
    """Raised by an examination that cannot say anything; its text is a clause on why."""


class Patient:
    """A training in the precision that is examined, and in float32.

    Examinations share what they find out here; each replay is built anew, so that none disturbs another.

    Args:
        config: the training, in the precision that is examined.
        device: the device that it trains on, which this process holds.
        data: its data, built on the device.
        num_steps: steps that a replay takes at most.
        deadline_s: `time.monotonic` at which examinations come to an end with what they have.
        checkpoint: the state to begin with; None: that of the first step.
    """

    def __init__(
        self,
        config: Config,
        device: torch.device,
        data: KeptBatches,
        *,
        num_steps: int,
        deadline_s: float,
        checkpoint: FoundCheckpoint | None = None,
    ) -> None:
        self.config, self.device, self.data = config, device, data
        self.num_steps, self.deadline_s, self.checkpoint = num_steps, deadline_s, checkpoint
        self.facts: dict[str, object] = {}
        """Figures for `Diagnosis.facts`."""
        self.numerics: RunNumerics | None = None
        """The magnitudes of its values in float32; None while nobody has looked at them."""

    def starting_from(self, checkpoint: FoundCheckpoint) -> "Patient":
        """The same training, examined from a checkpoint on; figures go where they went before."""
        other = copy(self)
        other.checkpoint = checkpoint
        for known in ("own_steps", "baseline_steps"):
            vars(other).pop(known, None)
        return other

    @property
    def seconds_left(self) -> float:
        """Time until examinations come to an end."""
        return self.deadline_s - time.monotonic()

    @property
    def is_baseline(self) -> bool:
        """Tell whether the training computes in float32 anyway: there is nothing to compare it with."""
        precision = self.config.precision
        return precision.parameters == "float32" and not precision.autocast and not precision.grad_scaler

    def replay(self, precision: PrecisionConfig | None = None, **changes: object) -> Replay:
        """Build the training anew, in another precision, or with fields of its own precision changed."""
        wanted = replace(precision or self.config.precision, **changes)  # type: ignore[arg-type]
        return Replay(replace(self.config, precision=wanted), self.device, self.data, self.checkpoint)

    def baseline(self) -> Replay:
        """Build the training anew in float32."""
        return self.replay(PRECISION_MODES["fp32"])

    @cached_property
    def own_steps(self) -> TakenSteps:
        """The first steps in its own precision."""
        return self._steps(self.replay)

    @cached_property
    def baseline_steps(self) -> TakenSteps:
        """The first steps in float32; no more than there are in its own precision."""
        return self._steps(self.baseline)

    def _steps(self, build: Callable[[], Replay]) -> TakenSteps:
        return taken_steps(build, self.num_steps, time.monotonic() + self.seconds_left * _SHARE)


def checkpoint_before_fault(patient: Patient, last_step: int) -> FoundCheckpoint | None:
    """Take the steps of a run again, as it took them, and keep the state shortly before they go wrong for good.

    Args:
        patient: the training, from where its steps are known: its beginning, or a checkpoint of the run.
        last_step: the last step of the run.

    Returns:
        The state, at most `patient.num_steps` before the fault; None if the first steps show it, or none does.
    """
    replay, every = patient.replay(), max(1, patient.num_steps // 2)
    states, is_wrong, first_wrong = [replay.state()], False, 0
    while replay.trainer.step < last_step and patient.seconds_left > 0:
        if not is_wrong and replay.trainer.step - states[-1].step >= every:
            states = [states[-1], replay.state()]
            patient.data.forget_before(states[0].next_batch)
        try:
            step = replay.step()
        except Exception:  # noqa: BLE001  the model's own code may raise anything, and a replay from here shows it
            is_wrong, first_wrong = True, first_wrong if is_wrong else replay.trainer.step
            break
        if not is_wrong:
            first_wrong = step.number
        is_wrong = step.is_skipped or step.has_nonfinite_gradients or not math.isfinite(step.loss)
        if is_wrong and step.scale is None:
            break  # the parameters are ruined
    if not is_wrong or len(states) == 1:
        return None
    is_far = first_wrong - states[-1].step > _STEPS_BEFORE
    return FoundCheckpoint(states[-1] if is_far else states[0], Path())
