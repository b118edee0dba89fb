import math

import pytest
import torch
from patients import CPU, patient_of
from planted_numerics import PLANTED, net

from ampsweep.doctor.patient import NotExaminedError
from ampsweep.doctor.side_by_side.comparison import SideBySide
from ampsweep.doctor.side_by_side.examine import NoDigitsLeft, examine_numerics, growth
from ampsweep.doctor.side_by_side.recorded import Noise, matched, record_step, relative_error, selected, to_nearest

GPT = ("model=gpt_tiny", "data.batch_size=4", "data.seq_len=16")
SMALL_GAN = ("model=gan_digits", "data.batch_size=16", "optimizer=adam", "trainer.max_grad_norm=null")
SMALL_RESNET = ("model=resnet18", "data=synthetic_images", "data.image_size=16", "data.batch_size=4")


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.name)
def test_a_planted_error_is_found(planted):
    findings = examine_numerics(patient_of(*planted.overrides))
    assert findings, "nothing was found"
    first = findings[0]
    assert (first.kind(), first.modules) == (planted.kind, [planted.module])
    assert planted.operator in (None, first.operator)
    assert first.place is not None
    assert "planted_numerics.py" in first.place
    assert first.change.overrides
    assert first.proof.mends
    assert first.sentence.count(planted.module)


@pytest.mark.parametrize(
    ("workload", "mode"),
    [
        *((GPT, mode) for mode in ("amp_bf16", "amp_fp16", "pure_bf16")),
        *((SMALL_GAN, mode) for mode in ("amp_bf16", "pure_bf16")),
        (SMALL_RESNET, "amp_bf16"),  # convolutions in float16 take minutes on some CPUs
    ],
)
def test_a_healthy_training_has_no_finding(workload, mode):
    patient = patient_of(f"precision={mode}", *workload, num_steps=1)
    assert examine_numerics(patient) == []
    growth = patient.facts["numerics/error_growth"]
    assert len(growth) > 2
    assert all(0 <= point["error"] < 0.2 for point in growth)


def test_numbers_that_a_dtype_draws_otherwise_are_no_error():
    """CPUs draw float32 by another method than bfloat16, where their number is no multiple of 16."""
    torch.manual_seed(0)
    drawn = torch.randn(17 * 7)
    torch.manual_seed(0)
    assert not torch.equal(drawn.bfloat16(), torch.randn(17 * 7, dtype=torch.bfloat16))
    odd = ("model=gan_digits", "data.batch_size=17", "model.latent_size=7", "optimizer=adam")
    assert examine_numerics(patient_of("precision=pure_bf16", *odd, num_steps=1)) == []


@pytest.mark.parametrize("mode", ["amp_fp16", "amp_bf16", "pure_bf16"])
@pytest.mark.parametrize("inner", ["NormedTwice", "Sorted"])
def test_what_is_no_operators_error_is_no_finding(inner, mode):
    own = {"precision=amp_bf16": f"precision={mode}", "data.batch_size=32": "data.batch_size=512"}
    assert examine_numerics(patient_of(*(own.get(one, one) for one in net(inner)))) == []


def test_a_forward_pass_without_a_known_error_has_no_growth():
    """As of a training whose first values are NaN in both dtypes."""
    assert growth([]) == []


def test_float32_has_nothing_beside_it():
    with pytest.raises(NotExaminedError):
        examine_numerics(patient_of("precision=fp32", *GPT))


def test_explained_errors_follow_the_dtype():
    """float16 has three binary digits more than bfloat16: its explained errors are an eighth."""
    errors = {}
    for mode in ("amp_bf16", "amp_fp16"):
        sides = SideBySide(patient_of(f"precision={mode}", *GPT))
        calls = sides.compared()
        errors[mode] = [one.explained for one in calls if one.own.call.operator == "aten.addmm"]
        assert not any(sides.is_unexplained(one) for one in calls)
    ratios = [half / brain for half, brain in zip(errors["amp_fp16"], errors["amp_bf16"], strict=True)]
    assert all(1 / 16 < ratio < 1 / 4 for ratio in ratios)


def test_an_error_that_is_known_is_explained():
    planted = next(one for one in PLANTED if one.operator == "planted.row_sums")
    sides = SideBySide(patient_of(*planted.overrides))
    wrong = [one for one in sides.compared() if sides.is_unexplained(one)]
    assert len(wrong) > 1, "the error goes through what comes after it"
    sides.take_as_known([wrong[0].own])
    assert [one for one in sides.compared() if sides.is_unexplained(one)] == []


def test_calls_match_across_precisions():
    patient = patient_of("precision=amp_bf16", *GPT)
    own, baseline = patient.replay(), patient.baseline()
    pairs = [*matched(record_step(own), record_step(baseline))]
    assert all(one.call.operator == other.call.operator for one, other in pairs)
    assert all(one.call.module == other.call.module for one, other in pairs)
    operators = [one.call.operator for one, _ in pairs if one.call.phase == "forward"]
    assert operators.count("aten.addmm") == 8
    assert not any(one.call.is_cast for one, _ in pairs)


def test_relative_errors():
    exact = torch.tensor([3.0, 4.0])
    assert relative_error([exact], [exact]) == 0
    assert relative_error([torch.tensor([3.0, 4.5])], [exact]) == pytest.approx(0.1)
    assert relative_error([torch.tensor([math.inf, 4.0])], [exact]) == math.inf
    assert relative_error([torch.tensor([math.nan, 4.0])], [torch.tensor([math.inf, 4.0])]) == 0
    assert relative_error([torch.ones(2)], [torch.zeros(2)]) == 0
    assert relative_error([], []) == 0
    assert relative_error([torch.tensor([1.0, 0.0])], [torch.tensor([1.0, 2e-38])]) == 0
    assert relative_error([torch.zeros(2)], [torch.full((2,), 2e-38)]) == 0, "a kernel flushes it"


@pytest.mark.parametrize("size", [0, 1, 5, 200_000])
def test_noise_stays_within_its_width(size):
    values = torch.randn(size)
    changed = Noise(CPU).times(values, 0.5)
    assert changed.shape == values.shape
    assert ((changed - values).abs() <= 0.2500001 * values.abs()).all()
    assert size < 5 or not torch.equal(changed, values)


def test_rounding_is_that_of_torch():
    values = torch.randn(1000)
    assert torch.equal(to_nearest(values, torch.bfloat16), values.bfloat16().float())
    moved = Noise(CPU).round(values, torch.bfloat16)
    assert torch.equal(moved, moved.bfloat16().float())
    assert (relative_error([moved], [values]), relative_error([values.bfloat16().float()], [values])) != (0, 0)


def test_few_elements_stand_for_many():
    assert selected(torch.arange(10.0)).tolist() == [*range(10)]
    kept = selected(torch.arange(1e6))
    assert 2**13 < len(kept) <= 2**14
    assert (kept.diff() == kept.diff()[0]).all()


def test_an_overflow_is_told_as_one():
    finding = NoDigitsLeft(
        operator="aten.exp",
        step=1,
        dtype="float16",
        error=math.inf,
        explained_error=0.1,
        float32_error=2e-6,
        is_in_both=True,
    )
    assert finding.evidence == ["inf or NaN is in it at step 1, where float32 has finite numbers"]
