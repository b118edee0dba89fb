import math

import pytest
import torch
from examined_trainings import CPU, examined_of
from planted_numerics import PLANTED, net

from ampsweep.doctor.examined_training import NotExaminedError
from ampsweep.doctor.side_by_side.comparison import SideBySide
from ampsweep.doctor.side_by_side.examine import NoDigitsLeft, examine_numerics, growth
from ampsweep.doctor.side_by_side.recorded_step import Noise, relative_error, selected, to_nearest

GPT = ("model=gpt_tiny", "data.batch_size=4", "data.seq_len=16")
SMALL_GAN = ("model=gan_digits", "data.batch_size=16", "optimizer=adam", "trainer.max_grad_norm=null")
SMALL_RESNET = ("model=resnet18", "data=synthetic_images", "data.image_size=16", "data.batch_size=4")
BY_NAME = {planted.name: planted for planted in PLANTED}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_error_is_found(planted):
    first = examine_numerics(examined_of(*planted.overrides))[0]
    assert (first.kind(), first.modules) == (planted.kind, [planted.module])
    assert planted.operator in (None, first.operator)
    assert "planted_numerics.py" in first.place
    assert first.change.overrides[0].startswith(f"precision.fp32_modules=[{planted.module}")
    assert first.proof.mends
    assert first.sentence.count(f" of {planted.module} ({first.place})") == 1
    assert first.error > 4 * first.explained_error or first.error > 0.5 > 0.01 >= first.float32_error


@pytest.mark.parametrize(
    ("workload", "mode"),
    [
        *((GPT, mode) for mode in ("amp_bf16", "amp_fp16")),
        *((SMALL_GAN, mode) for mode in ("amp_bf16", "pure_bf16")),
        pytest.param(SMALL_RESNET, "amp_bf16", marks=pytest.mark.nightly),
    ],
)
def test_a_healthy_training_has_no_finding(workload, mode):
    examined = examined_of(*workload, f"precision={mode}", num_steps=1)
    assert examine_numerics(examined) == []
    growth = examined.facts["numerics/error_growth"]
    assert len(growth) > 2
    assert all(0 <= point["error"] < 0.2 for point in growth)


ODD = ("model=gan_digits", "data.batch_size=17", "model.latent_size=7", "optimizer=adam")
"""CPUs draw float32 by another method than bfloat16, where the number of elements is no multiple of 16."""


@pytest.mark.parametrize(
    ("workload", "mode"),
    [
        (ODD, "pure_bf16"),
        (net("normed_twice", batch_size=512), "amp_fp16"),
        (net("normed_twice", batch_size=512), "pure_bf16"),
        (net("sorted_rows", batch_size=512), "amp_bf16"),
    ],
)
def test_differences_that_are_no_error_are_no_finding(workload, mode):
    assert examine_numerics(examined_of(*workload, f"precision={mode}", num_steps=1)) == []


def test_float32_has_nothing_beside_it():
    examined = examined_of("precision=fp32", *GPT)
    with pytest.raises(NotExaminedError, match="float32 itself"):
        examine_numerics(examined)
    assert examined.numerics.steps, "its magnitudes are measured all the same"


def test_explained_errors_follow_the_dtype():
    """float16 has three binary digits more than bfloat16: its explained errors are an eighth."""
    errors = {}
    for mode in ("amp_bf16", "amp_fp16"):
        sides = SideBySide(examined_of(f"precision={mode}", *GPT))
        calls = sides.compared()
        errors[mode] = [call.explained for call in calls if call.own.call.operator == "aten.addmm"]
        assert len(errors[mode]) == 8
        assert not any(sides.is_unexplained(call) or call.own.call.is_cast for call in calls)
        assert all(call.own.call.module == call.baseline.call.module for call in calls)
    ratios = [half / brain for half, brain in zip(errors["amp_fp16"], errors["amp_bf16"], strict=True)]
    assert all(1 / 16 < ratio < 1 / 4 for ratio in ratios)


def test_an_error_that_is_known_is_explained():
    sides = SideBySide(examined_of(*BY_NAME["no accumulator"].overrides))
    wrong = [call for call in sides.compared() if sides.is_unexplained(call)]
    assert len(wrong) > 1, "the error goes through what comes after it"
    sides.take_as_known([wrong[0].own])
    assert [call for call in sides.compared() if sides.is_unexplained(call)] == []


def test_relative_errors():
    exact = torch.tensor([3.0, 4.0])
    assert relative_error([exact], [exact]) == 0
    assert relative_error([torch.tensor([3.0, 4.5])], [exact]) == pytest.approx(0.1)
    assert relative_error([torch.tensor([math.inf, 4.0])], [exact]) == math.inf
    assert relative_error([torch.tensor([math.nan, 4.0])], [torch.tensor([math.inf, 4.0])]) == 0
    assert relative_error([torch.ones(2)], [torch.zeros(2)]) == 0
    assert relative_error([], []) == 0
    assert relative_error([exact, torch.tensor([3.0, 4.5])], [exact, exact]) == pytest.approx(0.1), "the largest counts"
    assert relative_error([torch.zeros(2)], [torch.full((2,), 2e-38)]) == 0, "a kernel flushes it"


@pytest.mark.parametrize("size", [0, 5, 200_000])
def test_noise_stays_within_its_width(size):
    values = torch.randn(size)
    changed = Noise(CPU).times(values, 0.5)
    assert ((changed - values).abs() <= 0.2500001 * values.abs()).all()
    assert not size or not torch.equal(changed, values)
    assert torch.equal(to_nearest(values, torch.bfloat16), values.bfloat16().float())
    moved = Noise(CPU).round(values, torch.bfloat16)
    assert torch.equal(moved, moved.bfloat16().float())
    assert size < 6 or not torch.equal(moved, values.bfloat16().float())


def test_few_elements_stand_for_many():
    assert selected(torch.arange(10.0)).tolist() == [*range(10)]
    kept = selected(torch.arange(1e6))
    assert 2**13 < len(kept) <= 2**14
    assert (kept.diff() == kept.diff()[0]).all()


def test_an_overflow_and_an_empty_growth_are_described():
    facts = {"step": 1, "dtype": "float16", "explained_error": 0.1, "float32_error": 2e-6, "is_in_both": True}
    finding = NoDigitsLeft(operator="aten.exp", error=math.inf, **facts)
    assert finding.evidence == ["it contains inf or NaN at step 1, where float32 has finite numbers"]
    assert growth([]) == [], "as of a training whose first values are NaN in both dtypes"
