"""Float8 layers in words."""

from ampsweep.analysis.float8_gain import Float8Gain, Float8Summary, float8_summary
from ampsweep.record.parts import Float8Layer, Float8Proof, KeptLayer

PROOF = Float8Proof(
    recipe="rowwise",
    converted=[Float8Layer(name="body", in_features=32, out_features=64, flops={"float8_e4m3fn": 65536}, casts=2)],
    kept=[KeptLayer(name="stem", kind="Conv2d", why="no_linear"), KeptLayer(name="head", kind="Linear", why="output")],
)


def test_layers_are_told_with_the_reasons_of_the_others():
    assert float8_summary(PROOF).layers == "1 layer in float8, not stem (not nn.Linear); head (the output layer)"
    emulated = float8_summary(PROOF | Float8Proof(emulated="cpu has none"))
    assert emulated.layers.startswith("1 layer in float8 (emulated: cpu has none), not")
    assert (
        Float8Summary(recipe="rowwise", num_converted=2, emulated=None, kept=(), gain=None).layers
        == "2 layers in float8"
    )


def test_the_work_of_a_layer_is_that_of_its_rows():
    assert float8_summary(PROOF).gain.num_layers == 1
    assert PROOF.converted[0].shape.rows == 16
    assert float8_summary(Float8Proof(recipe="rowwise")) is None
    assert float8_summary(None) is None


def test_what_it_can_gain():
    assert Float8Gain(
        recipe="tensorwise", num_layers=2, bf16_us=50.0, float8_us=200.0, num_measured_slower=2
    ).sentence == (
        "fp8_tensorwise can gain no time at this size: by torchao's roofline of an H100 its 2 float8 layers take "
        "0.0500 ms a step in bfloat16, 0.200 ms in float8 with rounding, and all have sizes that torchao measured to "
        "gain nothing"
    )
    assert Float8Gain(
        recipe="rowwise", num_layers=2, bf16_us=3000.0, float8_us=2000.0, num_measured_slower=1
    ).sentence == (
        "fp8_rowwise can gain time where the step is compiled, up to 1.50x: by torchao's roofline of an H100 its 2 "
        "float8 layers take 3.00 ms a step in bfloat16, 2.00 ms in float8 with rounding, and 1 of them has sizes that "
        "torchao measured to gain nothing"
    )
