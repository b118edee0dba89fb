"""The training that the doctor examines: what every examination starts from."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import torch

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config, PrecisionConfig
from ampsweep.doctor.replay import KeptBatches, Replay, TakenStep
from ampsweep.record.numerics import RunNumerics
from ampsweep.training.found_checkpoint import FoundCheckpoint

_SHARE: Final = 0.1
"""The share of the time left that a first look at the steps may take: of large models it sees fewer of them."""


class NotExaminedError(Exception):
    """Raised by an examination that cannot say anything; its text is a clause on why."""


@dataclass(frozen=True)
class TakenSteps:
    """The steps of a replay, up to the one after which nothing was left to see."""

    steps: tuple[TakenStep, ...]
    error: Exception | None = None
    """The error that the step after the last one raised, such as one of two dtypes that do not fit; None: no error."""


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
        other = Patient(
            self.config,
            self.device,
            self.data,
            num_steps=self.num_steps,
            deadline_s=self.deadline_s,
            checkpoint=checkpoint,
        )
        other.facts, other.numerics = self.facts, self.numerics
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
        steps: list[TakenStep] = []
        try:
            replay = build()
            until_s = time.monotonic() + self.seconds_left * _SHARE
            while len(steps) < self.num_steps and (not steps or time.monotonic() < until_s):
                steps.append(replay.step())
        except Exception as error:  # noqa: BLE001  the model's own code may raise anything
            return TakenSteps(tuple(steps), error)
        return TakenSteps(tuple(steps))
