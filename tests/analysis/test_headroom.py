import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import document

from ampsweep.analysis.headroom import MAX_LOST_PCT, ExponentCounts, headroom_lines, headroom_of
from ampsweep.record.numerics import Magnitudes, RunNumerics


def tensor(layer, kind, values, *, dtype="float32"):
    values = np.abs(np.asarray(values, dtype=np.float64))
    nonzero = values[values > 0]
    exponents = np.frexp(nonzero)[1] - 1
    first = int(exponents.min()) if len(exponents) else 0
    found = Magnitudes(layer=layer, kind=kind, dtype=dtype, num_steps=1, num_elements=len(values), first_exponent=first)
    found.max_abs = float(nonzero.max()) if len(nonzero) else 0.0
    found.counts = np.bincount(exponents - first).tolist() if len(nonzero) else []
    return found


def normal(scale, num=4000):
    return np.random.default_rng(0).normal(size=num) * scale


def gradient(scale, layer="a"):
    return tensor(layer, "activation_gradient", normal(scale))


def of(*tensors, scale=None, outside=()):
    return headroom_of(RunNumerics(magnitudes=list(tensors), scale=scale, outside=list(outside)))


def float16(*tensors, **more):
    fitting = (tensor("a", "activation", normal(1.0)), tensor("a.weight", "weight", normal(0.02)))
    return of(*fitting, *tensors, **more)["float16"]


def obstacles(found):
    return [(one.kind, one.layer, one.tensor) for one in found.obstacles]


def test_shares_of_a_histogram_are_those_of_the_values():
    values = np.abs(normal(1.0, num=40_000))
    counts = ExponentCounts.of([tensor("a", "activation", values)])
    for threshold in (1e-3, 0.1, 0.7, 1.0, 2.0):
        share = values[values < threshold].sum() / values.sum()
        assert counts.sum_share_below(threshold) == pytest.approx(share, abs=0.03)
    for share in (1e-4, 0.05, 0.5, 0.99):
        assert counts.sum_share_below(counts.threshold_of(share)) == pytest.approx(share)
    empty = ExponentCounts.of([tensor("a", "activation", [0.0, 0.0])])
    assert (empty.sum_share_below(1.0), empty.threshold_of(0.5), of()) == (0.0, None, {})


def test_the_largest_scale_is_that_of_the_largest_gradient():
    found = float16(gradient(1e-3))
    assert (found.verdict, found.obstacles) == ("works", ())
    assert found.min_scale < found.scale == found.best_scale == 65536.0 < found.max_scale
    gradients = tensor("a", "activation_gradient", [0.5, 1.0]), tensor("b.weight", "gradient", [4.0, 2.0])
    found = float16(*gradients)
    assert found.max_scale == 65504.0 / 4
    assert (found.verdict, found.best_scale) == ("works_with_another_scale", 8192.0)
    assert float16(*gradients, scale=1000.0).verdict == "works"
    large = tensor("a", "activation_gradient", [100.0, 50.0])
    assert float16(large, scale=60_000.0).best_scale == 60_000.0 / 2**7, "halving ends at the first that fits"
    assert obstacles(float16(gradient(1e14))) == [("too_large", "a", "activation_gradient")], "scales have an end"


def test_the_smallest_scale_loses_as_much_as_may_be():
    found = float16(gradient(1e-14))
    assert (found.verdict, found.best_scale > found.scale) == ("works_with_another_scale", True)
    assert float16(gradient(1e-14), scale=found.best_scale).verdict == "works"
    values = np.abs(normal(1e-14, num=100_000))
    in_float16 = (values * float16(tensor("a", "activation_gradient", values)).min_scale).astype(np.float16)
    assert 100 * values[in_float16 == 0].sum() / values.sum() == pytest.approx(MAX_LOST_PCT, rel=0.1)


def test_no_scale_is_right_for_gradients_too_far_apart():
    found = float16(gradient(1e-13), gradient(1.0, "b"))
    assert (found.verdict, obstacles(found)) == ("does_not_work", [("vanishes", "a", "activation_gradient")])
    assert found.obstacles[0].lost_pct > 90


def test_activations_and_weights_beyond_the_range_are_in_the_way():
    large = tensor("b", "activation", normal(1e5)), tensor("c.weight", "weight", [1e6, 1.0])
    found = of(tensor("a", "activation", normal(1.0)), *large)
    assert obstacles(found["float16"]) == [("too_large", "b", "activation"), ("too_large", "c", "weight")]
    assert found["float16"].fullest_layer == "c"
    assert found["float16"].fullest_pct == pytest.approx(100 * 1e6 / 65504)
    assert found["bfloat16"].verdict == "works"
    assert float16(*large, outside={"b", "c.weight"}).verdict == "works", "outside of autocast they are not"
    assert obstacles(float16(tensor("b", "activation", normal(1e-9)))) == [("vanishes", "b", "activation")]


def test_losses_and_small_parameters_beside_large_do_not_count():
    loss = tensor("", "activation", [1e9]), tensor("", "activation_gradient", [1.0])
    found = float16(*loss, gradient(1e-3))
    assert (found.verdict, found.max_scale > 65536) == ("works", True)
    bias = tensor("a.bias", "weight", normal(1e-10)), tensor("a.bias", "gradient", normal(1e-16))
    assert float16(*bias, tensor("a.weight", "gradient", normal(1e-3))).verdict == "works"
    assert obstacles(float16(tensor("b.bias", "weight", normal(1e-10)))) == [("vanishes", "b", "weight")]


def test_formats_of_8_bits_have_a_scale_for_each_tensor():
    found = of(tensor("a", "activation", normal(1e-4)), tensor("b", "activation", normal(1e4)), gradient(1e-9))
    assert found["float8_e4m3fn"].verdict == found["float8_e5m2"].verdict == "works_with_tensor_scales"
    assert of(tensor("a", "activation", normal(1.0)))["float8_e4m3fn"].verdict == "works"
    overflown = replace(tensor("a", "activation", normal(1.0), dtype="float8_e4m3fn"), num_nonfinite=3)
    found = of(overflown)["float8_e4m3fn"]
    assert (found.verdict, found.fullest_layer, found.fullest_pct) == ("works_with_tensor_scales", "a", math.inf)
    outliers = np.concatenate([normal(1.0, num=100_000), [1e6]])
    found = of(tensor("a", "activation", outliers), tensor("b", "activation", normal(1.0)))["float8_e4m3fn"]
    assert (found.verdict, obstacles(found)) == ("does_not_work", [("vanishes", "a", "activation")])
    lost = np.abs(outliers)[np.abs(outliers) * (448 / 1e6) <= 2.0**-10].sum() / np.abs(outliers).sum()
    assert found.obstacles[0].lost_pct == pytest.approx(100 * lost, rel=0.3)


def test_sentences(golden):
    large, small = tensor("b", "activation", [1e6, 1e5]), tensor("c.weight", "weight", normal(1e-9))
    overflown = replace(tensor("b", "activation", [1.0, 2.0], dtype="float16"), num_nonfinite=3)
    cases = {
        "fits": float16(gradient(1e-3)),
        "no gradients": float16(),
        "scale below 1": float16(gradient(1e6)),
        "larger scale": float16(gradient(1e-14)),
        "three layers": float16(large, tensor("d", "activation", [1e6, 1e5]), small),
        "overflown": float16(overflown),
        "vanishing": float16(small),
        "no scale": float16(gradient(1e-13, ""), gradient(1.0, "b")),
        "bfloat16": of(large, small)["bfloat16"],
        "tensor scales": of(tensor("a", "activation", normal(1e-4)))["float8_e4m3fn"],
    }
    assert headroom_lines({}) == []
    text = document(
        sentence={name: one.sentence for name, one in cases.items()},
        short={name: one.short for name, one in cases.items()},
        lines=dict(enumerate(headroom_lines(of(tensor("a", "activation", normal(1.0)), gradient(1e-9))))),
        given_a_finding={name: one.given_finding(2) for name, one in cases.items()},
    )
    golden("headroom.md", text)
