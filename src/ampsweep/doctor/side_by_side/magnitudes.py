"""The magnitudes of a training's values in float32, from which the headroom of other formats is told."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch
from torch.optim import Optimizer

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.patient import Patient
from ampsweep.monitors.looks import Looks
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.precision import Precision
from ampsweep.record.numerics import RunNumerics
from ampsweep.tracing.lowered_layers import note_lowered_layers

_STEPS: Final = (1, 2, 4)
"""The steps, from the first one replayed, that are looked into."""


def baseline_magnitudes(patient: Patient) -> RunNumerics:
    """Look into a few of the first steps in float32."""
    replay = patient.baseline()
    began_at = replay.trainer.step
    watch = NumericsWatch(
        replay.model,
        replay.built.precision,
        Looks(None, _STEPS[-1]),
        is_compiled=patient.config.trainer.compile,
    )
    with _seeing_gradients(replay.built.precision, watch):
        while replay.trainer.step - began_at < _STEPS[-1] and (not watch.numerics().steps or patient.seconds_left > 0):
            if replay.trainer.step - began_at + 1 not in _STEPS:
                replay.step()
                continue
            replay.read_ahead()
            with watch.look():
                replay.step()
            watch.read(replay.trainer.step)
    numerics = watch.numerics()
    numerics.outside = _outside_autocast(patient)
    return numerics


def _outside_autocast(patient: Patient) -> list[str]:
    """The modules and parameters whose values no operator under autocast makes or takes in low precision.

    Autocast lowers the same operators to either dtype; bfloat16 is the faster one where there is no hardware for it.
    """
    replay = patient.replay(replace(PRECISION_MODES["amp_bf16"], fp32_modules=patient.config.precision.fp32_modules))
    with note_lowered_layers(replay.model, torch.bfloat16) as noted:
        replay.step()
    return sorted(noted.outside)


@contextmanager
def _seeing_gradients(precision: Precision, watch: NumericsWatch) -> Iterator[None]:
    """Show the gradients that an optimizer is about to use to the watch, before they are clipped."""
    unscale_, step = precision.unscale_, precision.step
    seen: set[Optimizer] = set()

    def see(optimizer: Optimizer) -> None:
        if watch.is_looking and optimizer not in seen:
            watch.see_gradients(optimizer)
            seen.add(optimizer)

    def unscale_seen(optimizer: Optimizer) -> None:
        see(optimizer)
        unscale_(optimizer)

    def step_seen(optimizer: Optimizer) -> None:
        see(optimizer)
        seen.discard(optimizer)
        if watch.is_looking:
            watch.before_update(optimizer)
        step(optimizer)
        if watch.is_looking:
            watch.after_update(is_applied=True)

    precision.unscale_, precision.step = unscale_seen, step_seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        precision.unscale_, precision.step = unscale_, step  # type: ignore[method-assign]
