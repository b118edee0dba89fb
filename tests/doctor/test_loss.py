"""Losses that low precision spoils: the search for its cause, and what is a fault."""

import math
import time
from dataclasses import replace
from functools import partial
from itertools import combinations

from planted import examined_of
from planted_loss import PLANTED

from ampsweep.config.identity import config_hash
from ampsweep.doctor.loss.examine import examine_loss
from ampsweep.doctor.loss.fault import FaultSigns, Judge
from ampsweep.doctor.loss.findings import CoarseRounding
from ampsweep.doctor.loss.needed_fp32_modules import smallest_set
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.replay import TakenStep
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import take_checkpoint

BY_NAME = {planted.name: planted for planted in PLANTED}
training = partial(examined_of, "tracking=disabled", num_steps=None, seconds=120.0)


def test_a_search_says_when_it_ran_out_of_time():
    examined = training(*BY_NAME["three of 71 modules"].overrides)
    assert examined.own_steps.steps
    assert examined.baseline_steps.steps
    examined.data.deadline_s = time.monotonic()
    assert next(examine_loss(examined)).kind() == "unsearched"


def test_a_fault_is_examined_from_a_checkpoint_on(tmp_path):
    examined = training(*BY_NAME["softmax without maximum"].overrides)
    replay = Variant(kept=frozenset({"inner"})).replay(examined)
    for _ in range(3):
        replay.step()
    take_checkpoint(replay.trainer, tmp_path, config_hash(examined.config), "custom", "amp_fp16")
    (found,) = examine_loss(replace(examined, checkpoint=find_checkpoint(tmp_path)))
    assert (found.kind(), found.modules, found.signs.step) == ("exp_overflow", ["inner"], 4)
    assert found.proof.mends


def test_all_culprits_and_nothing_else_are_found():
    for culprits in (*combinations(range(6), 1), *combinations(range(6), 3), tuple(range(6))):
        tried = []

        def fixes(some, culprits=culprits, tried=tried):
            tried.append(some)
            return set(culprits) <= some

        assert smallest_set(range(6), fixes, 6) == culprits
        assert len(tried) <= 4 * len(culprits)
        assert len(culprits) == 1 or smallest_set(range(6), fixes, len(culprits) - 1) is None


def step(number, loss=1.0, scale=None, is_skipped=False, is_ruined=False):
    gradients = {"has_nonfinite_gradients": is_ruined, "is_skipped": is_skipped}
    return TakenStep(number=number, loss=loss, scale=scale, **gradients)


def steps(losses, **more):
    return [step(number, loss, **more) for number, loss in enumerate(losses, start=1)]


def fault(taken, losses, skipping=None, spread=1e-3):
    """What is found in steps beside float32's losses, which are uncertain by a spread."""
    perturbed = [[loss + sign * spread for loss in losses] for sign in (-1, 0, 1)]
    found = Judge("float16", steps(losses), 1.0, lambda: perturbed, lambda skipped: skipping or losses).fault(taken)
    return "none" if found is None else f"{found.sign}: {found.sentence}"


DOWN = [step(number, 1.0, 65536.0 / 2**number, is_skipped=number < 6) for number in range(1, 21)]
TO_BELOW_1 = [step(number, 1.0, 2.0 ** (4 - number), is_skipped=True) for number in range(1, 8)]
MANY = steps([1.0] * 18, scale=2.0**40, is_skipped=True)
FALLING = [10.0 - number for number in range(9)]
BEHIND = [step(n, loss, 8.0, is_skipped=n < 3) for n, loss in enumerate([10, *FALLING], start=1)]
BETTER = [1.0] + [0.5] * 8
FAULTS = {
    "a scaler that finds its scale": fault(DOWN, [1.0] * 20),
    "skips at a scale of 1": fault(TO_BELOW_1, [1.0] * 7),
    "16 skips": fault(MANY[:16], [1.0] * 18),
    "18 skips": fault(MANY, [1.0] * 18),
    "behind by skipped steps": fault(BEHIND, [*FALLING, 1.0], skipping=[10, *FALLING]),
    "behind by more": fault(BEHIND, [*FALLING, 1.0]),
    "a gap within the spread of float32": fault(steps([1.05] * 9), [1.0] * 9, spread=0.1),
    # 99.9 % of Student's t with 2 degrees of freedom is 22.33; one more draw has a spread of sqrt(1 + 1/3).
    "a gap beyond 22.33 * 1e-3 * sqrt(4/3)": fault(steps([1.05] * 9), [1.0] * 9),
    "a better loss": fault(steps(BETTER), [1.0] * 9),
    "a loss of NaN": fault([step(1), step(2, math.nan)], [1.0, 1.0]),
    "a loss of NaN, in float32 as well": fault([step(1), step(2, math.nan)], [1.0, math.nan]),
    "gradients of NaN": fault([step(1), step(2, is_ruined=True)], [1.0, 1.0]),
    "gradients of NaN that a scaler skips": fault([step(1), step(2, scale=8.0, is_ruined=True)], [1.0, 1.0]),
}


def test_faults_of_invented_steps(golden):
    signs = FaultSigns(sign="vanished_gradients", step=1, num_steps=4, dtype="float16", loss=2.0, vanished_pct=60.0)
    finding = CoarseRounding(modules=["inner"], signs=signs)
    vanished = {"vanished gradients": f"{finding.sentence}: {', '.join(finding.evidence)}"}
    golden("faults.md", "\n".join(f"- {name}: {text}" for name, text in (FAULTS | vanished).items()))
