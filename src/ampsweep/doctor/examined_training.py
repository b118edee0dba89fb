"""The training that the doctor examines: the starting point of every examination."""

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
from ampsweep.doctor.replay import KeptBatches, OutOfTimeError, Replay, TakenSteps, taken_steps
from ampsweep.records.numerics import RunNumerics
from ampsweep.training.found_checkpoint import FoundCheckpoint

_SHARE: Final = 0.1  # the share of the remaining time that the first steps may take; of a large model fewer steps fit
_STEPS_BEFORE: Final = 2  # the least number of correct steps before a fault: they show what leads to it


class NotExaminedError(Exception):
    """Raised by an examination that has no result; its text is a clause with the reason."""


@dataclass(eq=False)
class ExaminedTraining:
    """A training in the precision that is examined, and in float32; examinations share its facts, not its replays."""

    config: Config  # the training in the precision that is examined, without a watch on its numerics
    device: torch.device  # the device that it trains on; this process holds it
    data: KeptBatches
    _: KW_ONLY
    num_steps: int  # steps that a replay takes at most
    checkpoint: FoundCheckpoint | None = None  # the state to begin with; None: the initial state
    facts: dict[str, object] = field(default_factory=dict)  # figures for `Diagnosis.facts`
    numerics: RunNumerics | None = None  # the magnitudes of its values in float32; None until they are measured

    def __post_init__(self) -> None:
        self.config = replace(self.config, numerics=replace(self.config.numerics, watch=False))

    @property
    def seconds_left(self) -> float:
        return self.data.seconds_left

    @property
    def is_baseline(self) -> bool:
        """True if the training itself computes in float32, with nothing to compare it to."""
        precision = self.config.precision
        return precision.parameters == "float32" and not precision.autocast and not precision.grad_scaler

    def replay(self, precision: PrecisionConfig | None = None) -> Replay:
        config = replace(self.config, precision=precision or self.config.precision)
        return Replay(config, self.device, self.data, self.checkpoint)

    def baseline(self) -> Replay:
        return self.replay(PRECISION_MODES["fp32"])

    @cached_property
    def own_steps(self) -> TakenSteps:
        return self._steps(self.replay)

    @cached_property
    def baseline_steps(self) -> TakenSteps:
        return self._steps(self.baseline)

    def _steps(self, build: Callable[[], Replay]) -> TakenSteps:
        return taken_steps(build, self.num_steps, time.monotonic() + self.seconds_left * _SHARE)


def checkpoint_before_fault(examined: ExaminedTraining, last_step: int) -> FoundCheckpoint | None:
    """Replay a run up to its last step; return the state shortly before it goes wrong for good. The state is at most
    `examined.num_steps` before the fault; None if the first steps or no steps show a fault."""
    replay, every = examined.replay(), max(1, examined.num_steps // 2)
    states, first_wrong = [replay.state()], 0
    while replay.trainer.step < last_step:
        if not first_wrong and replay.trainer.step - states[-1].step >= every:
            states = [states[-1], replay.state()]
            examined.data.forget_before(states[0].next_batch)
        try:
            step = replay.step()
        except OutOfTimeError:
            break
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
