"""The spread of float32 losses under errors as large as an arm's rounding: what rounding alone explains."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from ampsweep.doctor.loss.fault import Tolerance
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import Replay
from ampsweep.numeric_formats import FORMATS

_NUM_REPLAYS: Final = 4
_SEED: Final = 8191


def perturbed_losses(patient: Patient, num_steps: int) -> Tolerance:
    """Take the steps in float32 again, several times, with errors in the weights as the arm's rounding makes them.

    Before each forward pass every weight gets a relative error drawn evenly from [-u, u], u being the unit roundoff of
    the dtype that the arm computes in. Where the arm's parameters have that dtype the errors stay; under autocast only
    the copies of weights are rounded, so the errors are taken back after the step. Rounding has no such even errors if
    it loses every update in the same direction: that is what must stand out.
    """
    roundoff = FORMATS[patient.config.precision.dtype].unit_roundoff
    stay = patient.config.precision.parameters != "float32"
    curves: list[tuple[float, ...]] = []
    for number in range(_NUM_REPLAYS):
        if patient.seconds_left <= 0:
            break
        replay, losses = patient.baseline(), []
        generator = torch.Generator(replay.device).manual_seed(_SEED + number)
        for _ in range(num_steps):
            with _perturbed(replay, roundoff, generator, stay=stay):
                losses.append(replay.step().loss)
        curves.append(tuple(losses))
    return Tolerance(tuple(curves))


@contextmanager
def _perturbed(replay: Replay, roundoff: float, generator: torch.Generator, *, stay: bool) -> Iterator[None]:
    errors: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for parameter in replay.model.parameters():
            if parameter.is_floating_point():
                even = torch.rand(parameter.shape, generator=generator, device=parameter.device, dtype=torch.float32)
                errors.append((parameter, parameter * (even * 2 - 1) * roundoff))
                parameter.add_(errors[-1][1])
    yield
    if not stay:
        with torch.no_grad():
            for noisy, error in errors:
                noisy.sub_(error)
