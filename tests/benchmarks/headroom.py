"""The headroom told from a float32 run against what float16 then does: `python tests/benchmarks/headroom.py`.

Twenty trainings with scaled weights, inputs and losses (`headroom_models.py`). For each the headroom is judged by the
magnitudes of a few steps in float32. Then it is trained under autocast with a scaler: from the default scale, and with
each of a range of fixed scales. JSON goes to stdout.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from headroom_models import CASES, Case

from ampsweep.analysis.headroom import Headroom, HeadroomVerdict, headroom_of
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.side_by_side.examine import note_lowered_layers
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.monitors.observation_schedule import ObservationSchedule
from ampsweep.precision import Precision
from ampsweep.record.numerics import RunNumerics

STEPS: Final = 40
EVERY: Final = 5
"""Interval of the steps of the float32 run that are looked into."""
SCALES: Final = tuple(2.0**exponent for exponent in range(-20, 57, 4))
"""Fixed scales that are tried."""
TOLERANCE: Final = 0.15
"""The difference of the losses, as a share of the progress of the float32 run, up to which float16 follows it."""


@dataclass(frozen=True)
class Training:
    """A training as it went."""

    losses: tuple[float, ...]
    """Of its applied steps, without the loss factor."""
    num_skipped: int
    scale: float | None

    @property
    def end(self) -> float:
        """The mean of the last five losses."""
        return sum(self.losses[-5:]) / 5 if len(self.losses) >= 5 else math.nan


def train(case: Case, precision: Precision, *, collect: bool = False) -> tuple[Training, RunNumerics | None]:
    """Train a case; with `collect` note the magnitudes of its first steps."""
    torch.manual_seed(0)
    model = precision.convert(case.model())
    watch = NumericsWatch(model, precision, ObservationSchedule(EVERY, STEPS)) if collect else None
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr, eps=case.eps * case.loss_factor)
    generator = torch.Generator().manual_seed(1)
    losses: list[float] = []
    num_skipped = 0
    for _ in range(3 * STEPS):
        inputs, targets = case.batch(generator)
        scale = precision.scale()
        is_looking = watch is not None and watch.schedule.is_due(len(losses) + 1)
        with watch.look() if watch is not None and is_looking else nullcontext():
            with precision.autocast():
                output = model(inputs)
            loss = case.loss(output.float(), targets) * case.loss_factor
            precision.backward(loss)
            if watch is not None and is_looking:
                watch.see_gradients(optimizer)
            precision.unscale_(optimizer)
            finite = all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None)
            precision.step(optimizer)
            precision.update()
        if watch is not None and is_looking:
            watch.read(len(losses) + 1)
            watch.schedule.observed(0.0)
        optimizer.zero_grad()
        if scale is not None and not finite:
            num_skipped += 1
            generator = torch.Generator().manual_seed(1 + len(losses))  # the batch is tried again
            if float(scale) < 2.0**-24:
                break
        else:
            losses.append(float((case.followed or case.loss)(output.detach().float(), targets)))
            generator = torch.Generator().manual_seed(1 + len(losses))
            if not math.isfinite(losses[-1]) or len(losses) == STEPS:
                break
    ended = precision.scale()
    numerics = None if watch is None else watch.numerics()
    return Training(tuple(losses), num_skipped, None if ended is None else float(ended)), numerics


def outside_of(case: Case) -> frozenset[str]:
    """The layers of a case that have nothing to do with float16 under autocast."""
    torch.manual_seed(0)
    model, precision = case.model(), Precision("amp_fp16", "cpu")
    inputs, _ = case.batch(torch.Generator().manual_seed(1))
    with note_lowered_layers(model, torch.float16) as noted, precision.autocast():
        model(inputs)
    return noted.outside


def judged(case: Case) -> tuple[Headroom, Training]:
    """The headroom of a case in float16, and its training in float32."""
    full, numerics = train(case, Precision("fp32", "cpu"), collect=True)
    assert numerics is not None, case.name
    return headroom_of(replace(numerics, outside=list(outside_of(case))))["float16"], full


def in_float16(case: Case, full: Training, scales: Sequence[float]) -> dict[str, Any]:
    """What float16 does: from the default scale, and with fixed ones."""
    mode = PRECISION_MODES["amp_fp16"]
    default, _ = train(case, Precision(mode, "cpu"))
    good = [
        scale
        for scale in scales
        if (fixed := train(case, Precision(replace(mode, init_scale=scale), "cpu"))[0]).num_skipped == 0
        and follows(fixed, full)
    ]
    verdict: HeadroomVerdict = "does_not_work"
    if follows(default, full):
        verdict = "works_with_another_scale" if default.num_skipped else "works"
    elif any(scale > mode.init_scale for scale in good):
        verdict = "works_with_another_scale"
    return {
        "verdict": verdict,
        "num_skipped": default.num_skipped,
        "scale": default.scale,
        "loss": default.end,
        "working_scales": [min(good), max(good)] if good else None,
    }


def follows(half: Training, full: Training) -> bool:
    """Tell whether a training's loss is that of float32."""
    progress = abs(full.losses[0] - full.end)
    return len(half.losses) == len(full.losses) and abs(half.end - full.end) <= TOLERANCE * progress


def agrees(told: Headroom, did: dict[str, Any]) -> bool:
    """Tell whether the verdict is right, and the largest scale, where there is one, within a factor of 4."""
    if told.verdict != did["verdict"]:
        return False
    if told.verdict != "works_with_another_scale" or told.max_scale >= told.scale:
        return True
    return told.max_scale / 4 <= did["scale"] <= told.max_scale * 2


def examined(case: Case, scales: Sequence[float] = SCALES) -> dict[str, Any]:
    """The headroom of a case beside what float16 did."""
    told, full = judged(case)
    did = in_float16(case, full, scales)
    return {
        "case": case.name,
        "agrees": agrees(told, did),
        "told": {
            "verdict": told.verdict,
            "scales": [told.min_scale, told.max_scale],
            "in_the_way": [f"{one.layer}: {one.tensor} {one.kind}" for one in told.obstacles],
        },
        "did": did,
        "fp32_losses": [full.losses[0], full.end],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="only cases with this in their names")
    chosen = parser.parse_args().case
    torch.set_num_threads(1)
    results = []
    for case in CASES:
        if chosen is None or chosen in case.name:
            results.append(examined(case))
            print(json.dumps(results[-1]), file=sys.stderr)
    print(json.dumps({"agree": sum(one["agrees"] for one in results), "of": len(results), "cases": results}, indent=1))


if __name__ == "__main__":
    main()
