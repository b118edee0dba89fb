"""The training that the doctor examines: what every examination starts from."""

import math
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
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


@dataclass(eq=False)
class Patient:
    """A training in the precision that is examined, and in float32.

    Examinations share what they find out here; each replay is built anew, so that none disturbs another.
    """

    config: Config
    """The training, in the precision that is examined; nothing else watches its numerics meanwhile."""
    device: torch.device
    """The device that it trains on, which this process holds."""
    data: KeptBatches
    _: KW_ONLY
    num_steps: int
    """Steps that a replay takes at most."""
    deadline_s: float
    """`time.monotonic` at which examinations come to an end with what they have."""
    checkpoint: FoundCheckpoint | None = None
    """The state to begin with; None: that of the first step."""
    facts: dict[str, object] = field(default_factory=dict)
    """Figures for `Diagnosis.facts`."""
    numerics: RunNumerics | None = None
    """The magnitudes of its values in float32; None before they are measured."""

    def __post_init__(self) -> None:
        self.config = replace(self.config, numerics=replace(self.config.numerics, watch=False))

    def starting_from(self, checkpoint: FoundCheckpoint) -> "Patient":
        """The same training, examined from a checkpoint on; figures go where they went before."""
        return replace(self, checkpoint=checkpoint)

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
    """Take the steps of a run again up to its last one, and keep the state shortly before they go wrong for good.

    It is at most `patient.num_steps` before the fault; None if the first steps show it, or none does.
    """
    replay, every = patient.replay(), max(1, patient.num_steps // 2)
    states, first_wrong = [replay.state()], 0
    while replay.trainer.step < last_step and patient.seconds_left > 0:
        if not first_wrong and replay.trainer.step - states[-1].step >= every:
            states = [states[-1], replay.state()]
            patient.data.forget_before(states[0].next_batch)
        try:
            step = replay.step()
        except Exception:  # noqa: BLE001  the model's own code may raise anything, and a replay from here shows it
            first_wrong = first_wrong or replay.trainer.step
            break
        is_wrong = step.is_skipped or step.has_nonfinite_gradients or not math.isfinite(step.loss)
        first_wrong = (first_wrong or step.number) if is_wrong else 0
        if is_wrong and step.scale is None:
            break  # the parameters are ruined
    if not first_wrong or len(states) == 1:
        return None
    is_far = first_wrong - states[-1].step > _STEPS_BEFORE
    return FoundCheckpoint(states[-1] if is_far else states[0], Path())
