import math

import pytest

from ampsweep.analysis.headroom import Headroom, Obstacle, headroom_lines

COMMON = {"format": "float16", "scale": 65536.0, "best_scale": 65536.0, "min_scale": 0.01, "max_scale": 250_000.0}


def room(**more):
    return Headroom(**{**COMMON, "verdict": "works", **more})


def blocked(*obstacles, **more):
    return room(verdict="does_not_work", obstacles=obstacles, **more)


def obstacle(kind, layer, tensor="activation", *, max_abs=1e6, lost_pct=40.0):
    return Obstacle(kind=kind, layer=layer, tensor=tensor, max_abs=max_abs, lost_pct=lost_pct)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (
            room(fullest_layer="head", fullest_pct=12.5),
            "float16 works with scales from 0.0100 to 250,000, of which 65,536 is one; the largest value, in head, is "
            "12.5% of its limit",
        ),
        (room(min_scale=0.0, max_scale=math.inf), "float16 works"),
        (room(format="bfloat16", scale=1.0), "bfloat16 works: its range is that of float32"),
        (
            room(verdict="works_with_another_scale", max_scale=5000.0, best_scale=4096.0),
            "float16 works with scales from 0.0100 to 5,000, of which 65,536 is none: use precision.init_scale=4096",
        ),
        (
            blocked(obstacle("too_large", "a"), obstacle("too_large", "b"), obstacle("vanishes", "c", "weight")),
            "float16 does not work: activations of a reach 1,000,000, above its largest number, 65504, and 2 more "
            "layers in its way",
        ),
        (
            blocked(obstacle("too_large", "a", max_abs=math.inf)),
            "float16 does not work: activations of a reach inf, above its largest number, 65504",
        ),
        (
            blocked(obstacle("vanishes", "c", "weight")),
            "float16 does not work: of weights of c, 40.0% of the sum of magnitudes (above 5%) becomes zero",
        ),
        (
            blocked(obstacle("vanishes", "a", "gradient"), best_scale=16.0),
            "float16 does not work: of gradients of parameters of a, 40.0% of the sum of magnitudes (above 5%) becomes "
            "zero with a scale of 16.0",
        ),
        (
            room(format="float8_e5m2", verdict="works_with_tensor_scales"),
            "float8_e5m2 for gradients of activations works if each tensor has a scale of its own",
        ),
    ],
)
def test_a_format_is_told_in_one_sentence(of, told):
    assert of.sentence == told
    assert not told.endswith(".")


def test_a_summary_has_two_lines():
    found = {
        "float16": room(min_scale=0.0, max_scale=math.inf),
        "bfloat16": room(format="bfloat16"),
        "float8_e4m3fn": blocked(obstacle("vanishes", "a"), format="float8_e4m3fn"),
        "float8_e5m2": room(format="float8_e5m2", verdict="works_with_tensor_scales"),
    }
    assert headroom_lines(found) == [
        "float16 works",
        "bfloat16: works, float8_e4m3fn: does not work (a), float8_e5m2: works with a scale for each tensor",
    ]
    assert headroom_lines({}) == []


def test_a_format_that_a_finding_is_at_fault_in_does_not_work():
    free = room(min_scale=0.0, max_scale=math.inf)
    assert free.unless_mended(2) == (
        "float16 does not work until finding 2 is mended; by what layers return, it then works"
    )
    obstructed = blocked(obstacle("too_large", "a"))
    assert obstructed.unless_mended(2) == obstructed.sentence
