from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import document

from ampsweep.analysis.headroom import MAX_LOST_PCT, ExponentCounts, headroom_of
from ampsweep.records.numerics import Magnitudes, RunNumerics


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


def float8(*tensors):
    return of(*tensors)["float8_e4m3fn"]


def activation(values, layer="a", **more):
    return tensor(layer, "activation", values, **more)


def float16(*tensors, **more):
    fitting = activation(normal(1.0)), tensor("a.weight", "weight", normal(0.02))
    return of(*fitting, *tensors, **more)["float16"]


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


def test_the_smallest_scale_loses_as_much_as_may_be():
    values = np.abs(normal(1e-14, num=100_000))
    in_float16 = (values * float16(tensor("a", "activation_gradient", values)).min_scale).astype(np.float16)
    assert 100 * values[in_float16 == 0].sum() / values.sum() == pytest.approx(MAX_LOST_PCT, rel=0.1)
    best = float16(gradient(1e-14)).best_scale
    assert float16(gradient(1e-14), scale=best).verdict == "works"


TINY_WEIGHTS = tensor("c.weight", "weight", normal(1e-9))
GRADIENTS = tensor("a", "activation_gradient", [0.5, 1.0]), tensor("b.weight", "gradient", [4.0, 2.0])
LARGE = activation([1e6, 1e5], "b"), tensor("c.weight", "weight", [1e6, 1.0])
BIAS = tensor("a.bias", "weight", normal(1e-10)), tensor("a.bias", "gradient", normal(1e-16))
LOSS = tensor("", "activation", [1e9]), tensor("", "activation_gradient", [1.0])
OUTLIERS = np.concatenate([normal(1.0, num=100_000), [1e6]])

CASES = {
    "fits": float16(gradient(1e-3)),
    "no gradients": float16(),
    "the largest gradient is 4": float16(*GRADIENTS),
    "with a scale that fits": float16(*GRADIENTS, scale=1000.0),
    "halved until it fits": float16(tensor("a", "activation_gradient", [100.0, 50.0]), scale=60_000.0),
    "scale below 1": float16(gradient(1e6)),
    "beyond the smallest scale": float16(gradient(1e14)),
    "larger scale": float16(gradient(1e-14)),
    "three layers": float16(*LARGE, activation([1e6, 1e5], "d")),
    "outside of autocast": float16(*LARGE, outside={"b", "c.weight"}),
    "overflown": float16(replace(activation([1.0, 2.0], "b", dtype="float16"), num_nonfinite=3)),
    "vanishing weights": float16(TINY_WEIGHTS),
    "vanishing activations": float16(activation(normal(1e-9), "b")),
    "no scale for both": float16(gradient(1e-13, ""), gradient(1.0, "b")),
    "a loss does not count": float16(*LOSS, gradient(1e-3)),
    "nor a small bias beside its weight": float16(*BIAS, tensor("a.weight", "gradient", normal(1e-3))),
    "a bias alone does": float16(replace(BIAS[0], layer="b.bias")),
    "bfloat16": of(*LARGE, TINY_WEIGHTS)["bfloat16"],
    "8 bits": float8(activation(normal(1.0))),
    "tensor scales": float8(activation(normal(1e-4)), activation(normal(1e4), "b")),
    "tensor scales of gradients": of(gradient(1e-9))["float8_e5m2"],
    "8 bits, overflown": float8(replace(activation(normal(1.0), dtype="float8_e4m3fn"), num_nonfinite=3)),
    "8 bits, an outlier": float8(activation(OUTLIERS), activation(normal(1.0), "b")),
}


def test_sentences_and_figures(golden):
    figures = {}
    for name, one in CASES.items():
        fits = f"{one.verdict} at {one.scale:g}; {one.min_scale:.3g} to {one.max_scale:.6g}, best {one.best_scale:g}"
        found = [f"{each.kind} {each.layer} {each.tensor} {each.lost_pct:.3g}%" for each in one.obstacles]
        figures[name] = "; ".join([fits, f"fullest {one.fullest_layer} {one.fullest_pct:.3g}%", *found])
    text = document(
        sentence={name: one.sentence for name, one in CASES.items()},
        figures=figures,
        given_a_finding={name: CASES[name].given_finding(2) for name in ("fits", "overflown", "bfloat16", "8 bits")},
    )
    golden("headroom.md", text)
