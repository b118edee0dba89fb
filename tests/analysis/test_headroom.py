import math
from dataclasses import replace

import numpy as np
import pytest

from ampsweep.analysis.headroom import MAX_LOST_PCT, ExponentCounts, headroom_of
from ampsweep.record.numerics import Magnitudes, RunNumerics


def tensor(layer, kind, values, *, steps=1, dtype="float32"):
    """The magnitudes of a tensor of these values."""
    values = np.abs(np.asarray(values, dtype=np.float64))
    nonzero = values[values > 0]
    exponents = np.frexp(nonzero)[1] - 1
    first = int(exponents.min()) if len(exponents) else 0
    return Magnitudes(
        layer=layer,
        kind=kind,
        dtype=dtype,
        num_steps=steps,
        num_elements=len(values),
        num_zeros=int((values == 0).sum()),
        max_abs=float(nonzero.max()) if len(nonzero) else 0.0,
        first_exponent=first,
        counts=np.bincount(exponents - first).tolist() if len(nonzero) else [],
    )


def normal(scale, *, seed=0, num=4000):
    return np.random.default_rng(seed).normal(size=num) * scale


def of(*tensors, scale=None, outside=()):
    return headroom_of(RunNumerics(magnitudes=list(tensors), scale=scale, outside=list(outside)))


FITTING = (tensor("a", "activation", normal(1.0)), tensor("a.weight", "weight", normal(0.02)))


def float16(*tensors, **more):
    return of(*FITTING, *tensors, **more)["float16"]


@pytest.mark.parametrize("threshold", [1e-3, 0.1, 0.7, 1.0, 2.0])
def test_shares_of_a_histogram_are_those_of_the_values(threshold):
    values = np.abs(normal(1.0, num=40_000))
    counts = ExponentCounts.of([tensor("a", "activation", values)])
    below = values[values < threshold]
    assert counts.sum_share_below(threshold) == pytest.approx(below.sum() / values.sum(), abs=0.03)


@pytest.mark.parametrize("share", [1e-4, 0.05, 0.5, 0.99])
def test_the_threshold_of_a_share_has_that_share_below(share):
    counts = ExponentCounts.of([tensor("a", "activation", normal(3e-7))])
    assert counts.sum_share_below(counts.threshold_of(share)) == pytest.approx(share)


def test_a_histogram_without_elements_has_nothing_below():
    counts = ExponentCounts.of([tensor("a", "activation", [0.0, 0.0])])
    assert (counts.sum_share_below(1.0), counts.threshold_of(0.5)) == (0.0, None)


def test_gradients_within_the_range_work_as_they_are():
    found = float16(tensor("a", "activation_gradient", normal(1e-3)))
    assert found.verdict == "works"
    assert found.min_scale < found.scale == found.best_scale == 65536.0 < found.max_scale
    assert found.obstacles == ()


def test_the_largest_scale_is_that_of_the_largest_gradient():
    gradients = tensor("a", "activation_gradient", [0.5, 1.0]), tensor("b.weight", "gradient", [4.0, 2.0])
    found = float16(*gradients)
    assert found.max_scale == 65504.0 / 4
    assert (found.verdict, found.best_scale) == ("works_with_another_scale", 8192.0)
    assert float16(*gradients, scale=1000.0).verdict == "works"


def test_halving_ends_at_the_first_scale_that_is_small_enough():
    gradient = tensor("a", "activation_gradient", [100.0, 50.0])
    assert float16(gradient, scale=60_000.0).best_scale == 60_000.0 / 2**7
    assert 60_000.0 / 2**6 * 100 > 65504


def test_gradients_too_small_for_the_scale_ask_for_a_larger_one():
    found = float16(tensor("a", "activation_gradient", normal(1e-14)))
    assert found.verdict == "works_with_another_scale"
    assert found.best_scale > found.scale
    assert float16(tensor("a", "activation_gradient", normal(1e-14)), scale=found.best_scale).verdict == "works"
    assert found.best_scale / found.min_scale == pytest.approx(found.max_scale / found.best_scale, rel=3)


def test_at_the_smallest_scale_as_much_is_lost_as_may_be():
    values = np.abs(normal(1e-14, num=100_000))
    scale = float16(tensor("a", "activation_gradient", values)).min_scale
    in_float16 = (values * scale).astype(np.float16)
    lost = values[in_float16 == 0].sum() / values.sum()
    assert 100 * lost == pytest.approx(MAX_LOST_PCT, rel=0.1)


def test_no_scale_is_right_for_gradients_too_far_apart():
    found = float16(tensor("a", "activation_gradient", normal(1e-13)), tensor("b", "activation_gradient", normal(1.0)))
    assert found.verdict == "does_not_work"
    (obstacle,) = found.obstacles
    assert (obstacle.kind, obstacle.layer, obstacle.tensor) == ("vanishes", "a", "activation_gradient")
    assert obstacle.lost_pct > 90


def test_layers_above_the_largest_number_are_in_the_way():
    found = of(
        tensor("a", "activation", normal(1.0)),
        tensor("b", "activation", normal(1e5)),
        tensor("c.weight", "weight", [1e6, 1.0]),
    )
    assert [(one.kind, one.layer) for one in found["float16"].obstacles] == [("too_large", "b"), ("too_large", "c")]
    assert found["float16"].fullest_layer == "c"
    assert found["float16"].fullest_pct == pytest.approx(100 * 1e6 / 65504)
    assert found["bfloat16"].verdict == "works"


def test_an_activation_that_vanishes_is_in_the_way():
    (obstacle,) = float16(tensor("b", "activation", normal(1e-9))).obstacles
    assert (obstacle.kind, obstacle.layer) == ("vanishes", "b")


def test_layers_outside_of_autocast_are_not():
    large = tensor("b", "activation", normal(1e6)), tensor("b.weight", "weight", normal(1e6))
    assert float16(*large).verdict == "does_not_work"
    assert float16(*large, outside={"b", "b.weight"}).verdict == "works"


def test_a_loss_may_be_larger_than_any_activation():
    loss = tensor("", "activation", [1e9]), tensor("", "activation_gradient", [1.0])
    found = float16(*loss, tensor("a", "activation_gradient", normal(1e-3)))
    assert found.verdict == "works"
    assert found.max_scale > 65536


def test_small_parameters_of_a_module_do_not_count_beside_large():
    bias = tensor("a.bias", "weight", normal(1e-10)), tensor("a.bias", "gradient", normal(1e-16))
    assert float16(*bias, tensor("a.weight", "gradient", normal(1e-3))).verdict == "works"
    alone = tensor("b.bias", "weight", normal(1e-10))
    assert float16(alone).obstacles[0].layer == "b"


def test_what_float16_itself_made_infinite_is_too_large():
    overflown = tensor("b", "activation", normal(1e3), dtype="float16")
    overflown.num_nonfinite = 3
    (obstacle,) = float16(overflown).obstacles
    assert (obstacle.kind, obstacle.layer, obstacle.max_abs) == ("too_large", "b", math.inf)


def test_a_scale_below_which_trainings_end_is_of_no_use():
    found = float16(tensor("a", "activation_gradient", normal(1e14)))
    assert [(one.kind, one.tensor) for one in found.obstacles] == [("too_large", "activation_gradient")]


def test_formats_of_8_bits_have_a_scale_for_each_tensor():
    found = of(
        tensor("a", "activation", normal(1e-4)),
        tensor("b", "activation", normal(1e4)),
        tensor("a", "activation_gradient", normal(1e-9)),
    )
    assert found["float8_e4m3fn"].verdict == "works_with_tensor_scales"
    assert found["float8_e5m2"].verdict == "works_with_tensor_scales"
    assert of(tensor("a", "activation", normal(1.0)))["float8_e4m3fn"].verdict == "works"


def test_an_overflow_in_float8_asks_for_a_scale_of_its_own():
    overflown = replace(tensor("a", "activation", normal(1.0), dtype="float8_e4m3fn"), num_nonfinite=3)
    found = of(overflown)["float8_e4m3fn"]
    assert (found.verdict, found.fullest_layer, found.fullest_pct) == ("works_with_tensor_scales", "a", math.inf)


def test_no_scale_mends_the_range_within_one_tensor():
    outliers = np.concatenate([normal(1.0, num=100_000), [1e6]])
    found = of(tensor("a", "activation", outliers), tensor("b", "activation", normal(1.0)))["float8_e4m3fn"]
    assert found.verdict == "does_not_work"
    (obstacle,) = found.obstacles
    assert (obstacle.kind, obstacle.layer) == ("vanishes", "a")
    in_fp8 = np.abs(outliers) * (448 / 1e6) > 2.0**-10
    lost = np.abs(outliers)[~in_fp8].sum() / np.abs(outliers).sum()
    assert obstacle.lost_pct == pytest.approx(100 * lost, rel=0.3)


def test_nothing_looked_at_says_nothing():
    assert of() == {}
