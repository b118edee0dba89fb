"""The doctor on losses that low precision spoils: each planted fault is named and fixed, and by no more than needed."""

import math
import time
from functools import partial
from itertools import combinations

import pytest
from examined_trainings import examined_of
from planted_loss import DATA, PLANTED, net

from ampsweep.config.identity import config_hash
from ampsweep.doctor.examined_training import NotExaminedError
from ampsweep.doctor.loss.examine import examine_loss
from ampsweep.doctor.loss.fault import FaultSigns, Judge
from ampsweep.doctor.loss.findings import CoarseRounding
from ampsweep.doctor.loss.needed_fp32_modules import smallest_set
from ampsweep.doctor.loss.variant import Variant, can_widen
from ampsweep.doctor.replay import TakenStep
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import take_checkpoint

BY_NAME = {planted.name: planted for planted in PLANTED}
SMALL_GPT = ("model=gpt_tiny", "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2")
TOKENS = ("data=synthetic_tokens", "data.vocab_size=64", "data.seq_len=16", "data.batch_size=8")
HEALTHY = {
    "gpt": (*SMALL_GPT, *TOKENS),
    "mlp": ("model=mlp_small", "model.hidden_size=64", *DATA),
    "gan": ("experiment=gan", "model.hidden_size=32", "data.batch_size=32"),
    "padded attention": net("infinite_mask", "fp32", num_layers=3),
}
training = partial(examined_of, "tracking=disabled", num_steps=None, seconds=120.0)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_planted_fault_is_named_and_fixed(name):
    planted, (found,) = BY_NAME[name], examine_loss(training(*BY_NAME[name].overrides))
    assert (found.kind(), next(iter(found.modules), None)) == (planted.kind, planted.module)
    assert planted.operator in (None, found.operator)
    assert found.kind() == "not_precision" or found.proof.mends
    lines = [found.sentence, *found.evidence, found.advice or "none", found.proof.sentence if found.proof else "none"]
    assert found.signs.sentence in lines
    assert not [line for line in lines if line.endswith(".") or "None" in line or "{" in line]
    if "71 modules" in name:
        numbers = [override for override in planted.overrides if "culprits" in override] or ["=[5]"]
        culprits = numbers[0].partition("=")[2].strip("[]").split(",")
        assert found.modules == [f"blocks.{number}.spread" for number in culprits]
        assert found.mending.num_modules >= 60
        assert found.change.overrides == [f"precision.fp32_modules=[{','.join(found.modules)}]"]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("gpt", mode) for mode in ("amp_bf16", "amp_fp16", "pure_bf16")),
        *(("mlp", mode) for mode in ("amp_fp16", "pure_bf16")),
        pytest.param("gan", "amp_fp16", marks=pytest.mark.nightly),
        ("gan", "amp_bf16"),
        ("padded attention", "amp_fp16"),
    ],
)
def test_nothing_is_found_in_a_healthy_training(name, mode):
    examined = training(*HEALTHY[name], f"precision={mode}", "doctor.steps=10")
    assert examine_loss(examined) == []
    steps = examined.facts["loss/steps"]
    assert [step["step"] for step in steps] == [*range(1, 11)]
    assert all(step["own"] == pytest.approx(step["baseline"], rel=0.1) for step in steps)


def test_float32_itself_has_nothing_to_compare_with():
    assert examine_loss(training(*HEALTHY["mlp"], "precision=fp32")) == []


def test_a_search_says_when_it_ran_out_of_time():
    examined = training(*BY_NAME["three of 71 modules"].overrides)
    assert examined.own_steps.steps
    assert examined.baseline_steps.steps
    examined.deadline_s = time.monotonic()
    (found,) = examine_loss(examined)
    assert found.kind() == "unsearched"


def test_a_fault_is_examined_from_a_checkpoint_on(tmp_path):
    examined = training(*BY_NAME["softmax without maximum"].overrides)
    replay = Variant(kept=frozenset({"inner"})).replay(examined)
    for _ in range(3):
        replay.step()
    take_checkpoint(replay.trainer, tmp_path, config_hash(examined.config), "custom", "amp_fp16")
    (found,) = examine_loss(examined.starting_from(find_checkpoint(tmp_path)))
    assert (found.kind(), found.modules, found.signs.step) == ("exp_overflow", ["inner"], 4)
    assert found.proof.mends


def test_a_step_that_raises_an_error_is_another_complaint():
    with pytest.raises(NotExaminedError, match="its steps end with an error"):
        examine_loss(training(*net("filled_mask", "amp_fp16", num_layers=3)))


def test_a_loss_that_diverges_in_both_is_not_precisions_fault():
    examined = training(*net("gelu", "amp_bf16", "optimizer=sgd", "optimizer.lr=1e30"), "doctor.steps=5")
    assert [found.kind() for found in examine_loss(examined)] == ["not_precision"]


@pytest.mark.parametrize("culprits", [*combinations(range(6), 1), *combinations(range(6), 3), tuple(range(6))])
def test_all_culprits_and_nothing_else_are_found(culprits):
    tried = []

    def fixes(some):
        tried.append(some)
        return set(culprits) <= some

    assert smallest_set(range(6), fixes, 6) == culprits
    assert len(tried) <= 4 * len(culprits)
    assert len(culprits) == 1 or smallest_set(range(6), fixes, len(culprits) - 1) is None


def step(number, loss=1.0, scale=None, is_skipped=False, is_ruined=False):
    return TakenStep(
        number=number, losses={"loss": loss}, scale=scale, has_nonfinite_gradients=is_ruined, is_skipped=is_skipped
    )


def judge(losses, skipping=None, spread=1e-3):
    perturbed = [[loss + sign * spread for loss in losses] for sign in (-1, 0, 1)]
    baseline = [step(number, loss) for number, loss in enumerate(losses, start=1)]
    return Judge("float16", baseline, 1.0, lambda: perturbed, lambda skipped: skipping or losses)


def test_skipped_steps_are_a_fault_at_a_scale_of_one_only():
    first = [step(number, 1.0, 65536.0 / 2**number, is_skipped=number < 6) for number in range(1, 21)]
    assert judge([1.0] * 20).fault(first) is None
    all_skipped = [step(number, 1.0, 2.0 ** (4 - number), is_skipped=True) for number in range(1, 8)]
    found = judge([1.0] * 7).fault(all_skipped)
    assert (found.sign, found.step, found.num_skipped) == ("skipped_steps", 4, 7)
    many = [step(number, 1.0, 2.0**40, is_skipped=True) for number in range(1, 19)]
    assert judge([1.0] * 18).fault(many[:16]) is None
    assert judge([1.0] * 18).fault(many).sign == "skipped_steps"


def test_a_loss_behind_by_skipped_steps_is_no_fault():
    falling = [10.0 - number for number in range(9)]
    steps = [step(number, loss, 8.0, is_skipped=number < 3) for number, loss in enumerate([10, *falling], start=1)]
    assert judge([*falling, 1.0], skipping=[10, *falling]).fault(steps) is None
    assert judge([*falling, 1.0]).fault(steps).sign == "worse_loss"


def test_a_gap_within_the_spread_of_float32_is_no_fault():
    steps = [step(number, 1.05) for number in range(1, 10)]
    assert judge([1.0] * 9, spread=0.1).fault(steps) is None
    found = judge([1.0] * 9, spread=1e-3).fault(steps)
    assert (found.sign, found.gap) == ("different_loss", pytest.approx(0.05))
    # 99.9 % of Student's t with 2 degrees of freedom is 22.33; one more draw has a spread of sqrt(1 + 1/3).
    assert found.allowed_gap == pytest.approx(22.327 * 1e-3 * math.sqrt(4 / 3), rel=1e-3)
    better = [step(number, 1.0 if number == 1 else 0.5) for number in range(1, 10)]
    assert judge([1.0] * 9, spread=1e-3).fault(better) is None


def test_inf_and_nan_are_a_fault_unless_float32_has_them():
    bad, good = step(2, math.nan), judge([1.0, 1.0])
    assert (good.fault([step(1), bad]).sign, good.fault([step(1), bad]).step) == ("nonfinite_loss", 2)
    assert judge([1.0, math.nan]).fault([step(1), bad]) is None
    bad = step(2, is_ruined=True)
    assert good.fault([step(1), bad]).sign == "nonfinite_gradients"
    assert good.fault([step(1), step(2, scale=8.0, is_ruined=True)]) is None


def test_functions_that_write_in_place_are_not_widened():
    assert [can_widen(name) for name in ("masked_fill", "__add__", "masked_fill_", "to")] == [True, True, False, False]


def test_vanishing_gradients_have_a_sentence():
    signs = FaultSigns(sign="vanished_gradients", step=1, num_steps=4, dtype="float16", loss=2.0, vanished_pct=60.0)
    finding = CoarseRounding(modules=["inner"], signs=signs)
    assert finding.evidence == ["60.0 % of the gradient is zero where it is not in float32"]
    assert finding.sentence == "gradients become zero in float16 in inner"
