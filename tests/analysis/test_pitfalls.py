"""Known pitfalls, told where a record has the facts and nowhere else."""

import pytest
import torch
from synthetic_records import run

from ampsweep.analysis.reasons import find_pitfalls
from ampsweep.analysis.runs import Run
from ampsweep.config.modes import MODES


def found(arm, *, compute="bfloat16", parameters="bfloat16", gradients=None, state=None, **more):
    dtypes = {
        "compute": compute,
        "parameters": parameters,
        "gradients": gradients or parameters,
        "optimizer_state": state or parameters,
    }
    config = {"optimizer": {"beta2": more.pop("beta2", 0.999)}, "precision": more.pop("precision", {})}
    return {one.kind(): one for one in find_pitfalls({arm: [Run(*run(arm, dtypes=dtypes, config=config, **more))]})}


def test_float32_has_none():
    assert found("fp32", compute="float32", parameters="float32") == {}
    assert found("amp_bf16", parameters="float32") == {}
    assert find_pitfalls({"pure_bf16": [Run(*run("pure_bf16"))]}) == (), "a record without dtypes tells nothing"


def test_small_updates_of_bfloat16_parameters_vanish():
    lost = found("pure_bf16")["vanishing_updates"].lost_below
    weights = torch.linspace(1, 2, 129, dtype=torch.bfloat16)
    for sign in (1, -1):
        assert torch.equal(weights + sign * 0.999 * lost * weights, weights), "what is told is so"


def test_a_mode_that_updates_in_its_own_way_is_not_accused():
    own = [name for name, mode in MODES.items() if mode.implementation is not None]
    assert own
    for name in own:
        assert "vanishing_updates" not in found(name)
        assert "stuck_moment" not in found(name)


@pytest.mark.parametrize(("beta2", "is_stuck"), [(0.999, True), (0.99, False), (0.95, False)])
def test_a_second_moment_in_bfloat16_cannot_fall(beta2, is_stuck):
    assert ("stuck_moment" in found("pure_bf16", beta2=beta2)) == is_stuck
    assert "stuck_moment" not in found("pure_bf16", beta2=beta2, state="float32")
    moment = torch.tensor(0.7, dtype=torch.bfloat16)
    assert torch.equal((moment.float() * beta2).bfloat16(), moment) == is_stuck, "what is told is so"


def test_a_narrow_moment_is_told_of_float32_parameters_too():
    assert set(found("amp_bf16+state_dtype=bfloat16", parameters="float32", state="bfloat16")) == {"stuck_moment"}
