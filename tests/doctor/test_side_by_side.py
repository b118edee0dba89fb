import math

import pytest
import torch
from planted import CPU, examined_of
from planted_numerics import net

from ampsweep.doctor.side_by_side.comparison import SideBySide
from ampsweep.doctor.side_by_side.recorded_step import RandomRounding, relative_error, selected, to_nearest

GPT = ("model=gpt_tiny", "data.batch_size=4", "data.seq_len=16")


def test_explained_errors_of_float16_are_an_eighth_of_those_of_bfloat16():
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
    sides = SideBySide(examined_of(*net("crude_exp")))
    wrong = [call for call in sides.compared() if sides.is_unexplained(call)]
    assert len(wrong) > 1, "the error goes through what comes after it"
    sides.take_as_known([wrong[0].own])
    assert [call for call in sides.compared() if sides.is_unexplained(call)] == []


def test_relative_errors():
    for results, exact, error in (
        ([[3.0, 4.0]], [[3.0, 4.0]], 0),
        ([[3.0, 4.5]], [[3.0, 4.0]], 0.1),
        ([[3.0, 4.0], [3.0, 4.5]], [[3.0, 4.0]] * 2, 0.1),  # the largest counts
        ([[math.inf, 4.0]], [[3.0, 4.0]], math.inf),
        ([[math.nan, 4.0]], [[math.inf, 4.0]], 0),
        ([[1.0, 1.0]], [[0.0, 0.0]], 0),
        ([[0.0, 0.0]], [[2e-38, 2e-38]], 0),  # a kernel flushes it
        ([], [], 0),
    ):
        assert relative_error([*map(torch.tensor, results)], [*map(torch.tensor, exact)]) == pytest.approx(error)


@pytest.mark.parametrize("size", [0, 5, 200_000])
def test_random_rounding_is_off_by_no_more_than_a_spacing(size):
    values = torch.randn(size)
    assert torch.equal(to_nearest(values, torch.bfloat16), values.bfloat16().float())
    moved = RandomRounding(CPU)(values, torch.bfloat16)
    assert torch.equal(moved, moved.bfloat16().float())
    assert ((moved - values).abs() <= torch.finfo(torch.bfloat16).eps * 1.01 * values.abs()).all()
    assert size < 6 or not torch.equal(moved, values.bfloat16().float())


def test_few_elements_stand_for_many():
    assert selected(torch.arange(10.0)).tolist() == [*range(10)]
    kept = selected(torch.arange(1e6))
    assert 2**13 < len(kept) <= 2**14
    assert (kept.diff() == kept.diff()[0]).all()
