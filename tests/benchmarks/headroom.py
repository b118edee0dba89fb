"""The headroom told from a few float32 steps, and what float16 does, for `tests/training/test_headroom_holds.py`."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

import torch
from headroom_models import Case
from torch import nn

from ampsweep.analysis.headroom import Headroom, headroom_of
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.side_by_side.examine import note_lowered_layers
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.monitors.observation_schedule import ObservationSchedule
from ampsweep.precision import Precision

STEPS: Final = 40
EVERY: Final = 5
"""Interval of the steps of the float32 run that are looked into."""
TOLERANCE: Final = 0.15
"""The difference of the losses, as a share of the progress of the float32 run, up to which float16 follows it."""


@dataclass(frozen=True)
class Training:
    """A training as it went: the losses are those of its applied steps, without the loss factor."""

    losses: list[float]
    num_skipped: int
    scale: float | None

    @property
    def end(self) -> float:
        """The mean of the last five losses."""
        return sum(self.losses[-5:]) / 5 if len(self.losses) >= 5 else math.nan

    def follows(self, full: "Training") -> bool:
        """Whether the loss is that of float32."""
        progress = abs(full.losses[0] - full.end)
        return len(self.losses) == len(full.losses) and abs(self.end - full.end) <= TOLERANCE * progress


def seeded(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.model()


def train(case: Case, precision: Precision, model: nn.Module, watch: NumericsWatch | None = None) -> Training:
    """Train a case's model; a watch on it notes the magnitudes of some steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr, eps=case.eps * case.loss_factor)
    losses: list[float] = []
    num_skipped = 0
    for _ in range(3 * STEPS):
        inputs, targets = case.batch(torch.Generator().manual_seed(1 + len(losses)))  # again after a skipped step
        scale = precision.scale()
        is_looking = watch is not None and watch.schedule.is_due(len(losses) + 1)
        with watch.look() if is_looking else nullcontext():
            with precision.autocast():
                output = model(inputs)
            precision.backward(case.loss(output.float(), targets) * case.loss_factor)
            if is_looking:
                watch.see_gradients(optimizer)
            precision.unscale_(optimizer)
            finite = all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None)
            precision.step(optimizer)
            precision.update()
        if is_looking:
            watch.read(len(losses) + 1)
            watch.schedule.observed(0.0)
        optimizer.zero_grad()
        if scale is None or finite:
            losses.append(float((case.followed or case.loss)(output.detach().float(), targets)))
            if not math.isfinite(losses[-1]) or len(losses) == STEPS:
                break
        else:
            num_skipped += 1
            if float(scale) < 2.0**-24:
                break
    ended = precision.scale()
    return Training(losses, num_skipped, None if ended is None else float(ended))


def judged(case: Case) -> tuple[Headroom, Training]:
    """The headroom of a case in float16, and its training in float32."""
    inputs, _ = case.batch(torch.Generator().manual_seed(1))
    model = seeded(case)
    with note_lowered_layers(model, torch.float16) as outside, Precision("amp_fp16", "cpu").autocast():
        model(inputs)
    model, full = seeded(case), Precision("fp32", "cpu")
    watch = NumericsWatch(model, full, ObservationSchedule(EVERY, STEPS))
    training = train(case, full, model, watch)
    return headroom_of(replace(watch.numerics(), outside=list(outside)))["float16"], training


def disagreement(case: Case, predicted: Headroom, full: Training) -> str:
    """What float16 does otherwise than predicted, from the default scale and with the best one told; empty if nothing.

    The verdict must be right, and the largest scale, where there is one, within a factor of 4.
    """
    mode, verdict = PRECISION_MODES["amp_fp16"], "does_not_work"
    found = train(case, Precision(mode, "cpu"), seeded(case))
    if found.follows(full):
        verdict = "works_with_another_scale" if found.num_skipped else "works"
    elif predicted.best_scale > predicted.scale:
        raised = train(case, Precision(replace(mode, init_scale=predicted.best_scale), "cpu"), seeded(case))
        if raised.num_skipped == 0 and raised.follows(full):
            verdict = "works_with_another_scale"
    is_right, most = predicted.verdict == verdict, predicted.max_scale
    if is_right and verdict == "works_with_another_scale" and most < predicted.scale:
        is_right = most / 4 <= found.scale <= most * 2
    facts = f"skipped {found.num_skipped} steps, ended with a scale of {found.scale} and a loss of {found.end}"
    return "" if is_right else f"predicted {predicted.verdict} up to {most}, but {verdict}: {facts}"
