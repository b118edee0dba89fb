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


def test_float16_parameters_need_a_scaler():
    half = {"compute": "float16", "parameters": "float16"}
    zero_below = found("pure_fp16", **half)["no_scaler"].zero_below
    assert torch.tensor(0.99 * zero_below).half() == 0
    assert torch.tensor(1.01 * zero_below).half() > 0
    assert "no_scaler" not in found("pure_fp16", **half, precision={"grad_scaler": True})


def test_gradients_are_added_up_in_a_narrow_dtype():
    several = {"facts": {"grad_accum_steps": 8}}
    sums = found("pure_bf16", **several)["narrow_sums"]
    assert (sums.of, sums.num_summed, sums.arms) == ("micro-batches", 8, ("pure_bf16",))
    assert "narrow_sums" not in found("pure_bf16")
    assert "narrow_sums" not in found("pure_bf16", gradients="float32", **several)
    assert "narrow_sums" not in found("pure_bf16", facts={"world_size": 4}), "the record has no reduction"
