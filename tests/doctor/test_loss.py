"""The doctor on losses that low precision spoils: each planted fault is named, mended, and mended by no less."""

import math
import time
from functools import partial
from itertools import combinations

import pytest
from patients import patient_of
from planted_loss import DATA, PLANTED

from ampsweep.config.identity import config_hash
from ampsweep.doctor.loss.culprits import find_culprits, smallest_set
from ampsweep.doctor.loss.examine import examine_loss
from ampsweep.doctor.loss.fault import FaultSigns, Judge, LossCase
from ampsweep.doctor.loss.findings import CoarseRounding
from ampsweep.doctor.loss.variant import Variant, can_widen
from ampsweep.doctor.patient import NotExaminedError
from ampsweep.doctor.replay import TakenStep
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import take_checkpoint

BY_NAME = {one.name: one for one in PLANTED}
SMALL = ("model=gpt_tiny", "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2")
TOKENS = ("data=synthetic_tokens", "data.vocab_size=64", "data.seq_len=16", "data.batch_size=8")
IMAGES = ("data=synthetic_images", "data.image_size=16", "data.num_classes=4", "data.batch_size=8")
SMALL_NET = ("model=custom", "model._target_=planted_loss.Small")
HEALTHY = {
    "gpt": (*SMALL, *TOKENS),
    "mlp": ("model=mlp_small", "model.hidden_size=64", *DATA),
    "gan": ("experiment=gan", "model.hidden_size=32", "data.batch_size=32"),
    "padded attention": (*DATA, "model=custom", "model._target_=planted_loss.MaskedAttention", "+model.how=infinite"),
}
patient = partial(patient_of, "tracking=disabled", num_steps=None, seconds=120.0)


@pytest.fixture(scope="module")
def findings():
    """The findings of each planted fault, by name, examined once."""
    return {}


def examined(name, findings):
    if name not in findings:
        findings[name] = examine_loss(patient(*BY_NAME[name].overrides))
    return findings[name]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_planted_fault_is_named_and_mended(name, findings):
    planted, found = BY_NAME[name], examined(name, findings)
    assert [one.kind() for one in found] == [planted.kind]
    first = found[0]
    assert (first.modules[0] if first.modules else None) == planted.module
    assert planted.operator in (None, first.operator)
    assert first.kind() == "not_precision" or first.proof.mends


@pytest.mark.parametrize(("name", "num_culprits"), [("two of 71 modules", 2), ("three of 71 modules", 3)])
def test_several_culprits_are_all_found(name, num_culprits, findings):
    overrides = BY_NAME[name].overrides
    numbers = next(one for one in overrides if "culprits" in one).partition("=")[2].strip("[]").split(",")
    found = examined(name, findings)[0]
    assert len(numbers) == num_culprits
    assert found.modules == [f"blocks.{number}.spread" for number in numbers]
    assert found.mending.num_modules >= 60


def test_the_set_is_the_smallest_by_brute_force():
    deep = ("model=custom", "model._target_=planted_loss.DeepNet", "+model.depth=3", "+model.culprits=[0,2]")
    case = LossCase(patient(*DATA, *deep, "precision=amp_fp16"))
    found = find_culprits(case)
    modules = [name for name, _ in Variant().replay(case.patient).model.named_modules() if name.count(".") == 2]
    assert len(modules) == 12
    assert len(found.kept) == 2
    assert found.kept in [pair for pair in combinations(modules, 2) if case.mends(Variant(kept=frozenset(pair)))]
    assert not [one for one in modules if case.mends(Variant(kept=frozenset({one})))]


def test_gradients_that_vanish_are_told_as_that():
    signs = FaultSigns(sign="vanished_gradients", step=1, num_steps=4, dtype="float16", loss=2.0, vanished_pct=60.0)
    finding = CoarseRounding(modules=["inner"], signs=signs)
    assert finding.evidence == ["60.0 % of the gradient is zero where it is not in float32"]
    assert finding.sentence == "gradients become zero in float16 in inner"


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16", "pure_bf16"])
@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_in_a_healthy_training(name, mode):
    assert examine_loss(patient(*HEALTHY[name], f"precision={mode}")) == []


def test_a_training_that_diverges_in_both_is_told_so():
    (found,) = examine_loss(patient(*DATA, *SMALL_NET, "precision=amp_bf16", "optimizer=sgd", "optimizer.lr=1e30"))
    assert found.kind() == "not_precision"


def test_what_time_is_too_short_for_is_said():
    overrides = BY_NAME["three of 71 modules"].overrides
    one = patient(*overrides)
    assert one.own_steps.steps
    assert one.baseline_steps.steps
    one.deadline_s = time.monotonic()
    (found,) = examine_loss(one)
    assert found.kind() == "unsearched"


def test_a_fault_is_examined_from_a_checkpoint_again_and_again(tmp_path):
    one = patient(*BY_NAME["softmax without maximum"].overrides)
    replay = Variant(kept=frozenset({"weigh"})).replay(one)
    for _ in range(3):
        replay.step()
    take_checkpoint(replay.trainer, tmp_path, config_hash(one.config), "custom", "amp_fp16")
    later = one.starting_from(find_checkpoint(tmp_path))
    (found,) = examine_loss(later)
    assert (found.kind(), found.modules, found.signs.step) == ("exp_overflow", ["weigh"], 4)
    assert found.proof.mends


def test_a_step_that_raises_an_error_is_another_complaint():
    with pytest.raises(NotExaminedError, match="its steps end with an error"):
        examine_loss(
            patient(*DATA, "model=custom", "model._target_=planted_loss.MaskedAttention", "precision=amp_fp16")
        )


def test_float32_itself_has_nothing_to_compare_with():
    assert examine_loss(patient(*HEALTHY["mlp"], "precision=fp32")) == []


def test_losses_are_told_as_facts():
    one = patient(*HEALTHY["mlp"], "precision=amp_bf16", "doctor.steps=3")
    examine_loss(one)
    assert [entry["step"] for entry in one.facts["loss/steps"]] == [1, 2, 3]
    assert all(entry["own"] == pytest.approx(entry["baseline"], rel=0.05) for entry in one.facts["loss/steps"])


@pytest.mark.parametrize("culprits", [*combinations(range(6), 1), *combinations(range(6), 3), tuple(range(6))])
def test_all_culprits_and_nothing_else_are_found(culprits):
    tried = []

    def mends(some):
        tried.append(some)
        return set(culprits) <= some

    assert smallest_set(range(6), mends, 6) == culprits
    assert len(tried) <= 4 * len(culprits)


def test_a_set_that_is_too_large_is_none():
    assert smallest_set(range(6), lambda some: set(range(4)) <= some, 3) is None


def step(number, loss=1.0, scale=None, is_skipped=False):
    losses = {"loss": loss}
    return TakenStep(number=number, losses=losses, scale=scale, has_nonfinite_gradients=False, is_skipped=is_skipped)


def judge(losses, skipping=None, spread=1e-3):
    perturbed = [[loss + one * spread for loss in losses] for one in (-1, 0, 1)]
    baseline = [step(number, loss) for number, loss in enumerate(losses, start=1)]
    return Judge("float16", baseline, 1.0, lambda: perturbed, lambda skipped: skipping or losses)


def test_first_skips_are_no_fault():
    steps = [step(number, 1.0, 65536.0 / 2**number, is_skipped=number < 6) for number in range(1, 21)]
    assert judge([1.0] * 20).fault(steps) is None


def test_steps_that_are_skipped_at_a_scale_of_one_are_a_fault():
    steps = [step(number, 1.0, 2.0 ** (4 - number), is_skipped=True) for number in range(1, 8)]
    found = judge([1.0] * 7).fault(steps)
    assert (found.sign, found.step) == ("skipped_steps", 4)


def test_a_loss_behind_by_skipped_steps_is_no_fault():
    falling = [10.0 - number for number in range(9)]
    steps = [step(number, loss, 8.0, is_skipped=number < 3) for number, loss in enumerate([10, *falling], start=1)]
    assert judge([*falling, 1.0], skipping=[10, *falling]).fault(steps) is None
    assert judge([*falling, 1.0]).fault(steps).sign == "worse_loss"


def test_a_gap_within_the_spread_of_float32_is_no_fault():
    steps = [step(number, 1.05) for number in range(1, 10)]
    assert judge([1.0] * 9, spread=0.1).fault(steps) is None
    assert judge([1.0] * 9, spread=1e-3).fault(steps).sign == "different_loss"


def test_a_loss_that_is_nan_in_float32_too_is_no_fault():
    assert judge([1.0, math.nan]).fault([step(1), step(2, math.nan)]) is None


def test_lines_that_write_in_place_are_not_widened():
    assert can_widen("masked_fill")
    assert can_widen("__add__")
    assert not can_widen("masked_fill_")
    assert not can_widen("to")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_finding_is_told_in_sentences(name, findings):
    for found in examined(name, findings):
        proof = [] if found.proof is None else [found.proof.sentence]
        lines = [line for line in (found.sentence, *found.evidence, found.advice, *proof) if line is not None]
        assert found.evidence
        assert not [line for line in lines if line.endswith(".") or "None" in line or "{" in line]
