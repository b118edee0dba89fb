"""Float8 layers in words."""

from ampsweep.analysis.float8_layers import Float8Summary, float8_summary
from ampsweep.record.parts import Float8Layer, Float8Proof, KeptLayer

PROOF = Float8Proof(
    recipe="rowwise",
    converted=[Float8Layer(name="body", in_features=32, out_features=64, flops={"float8_e4m3fn": 65536}, casts=2)],
    kept=[KeptLayer(name="stem", kind="Conv2d", why="no_linear"), KeptLayer(name="head", kind="Linear", why="output")],
)


def test_layers_are_told_with_the_reasons_of_the_others():
    assert float8_summary(PROOF).sentence == "1 layer in float8, not stem (not nn.Linear); head (the output layer)"
    emulated = float8_summary(PROOF | Float8Proof(emulated="cpu has none"))
    assert emulated.sentence.startswith("1 layer in float8 (emulated: cpu has none), not")
    alone = Float8Summary(recipe="rowwise", num_converted=2, emulated=None, kept=())
    assert alone.sentence == "2 layers in float8"


def test_without_a_traced_step_nothing_is_told():
    assert float8_summary(Float8Proof(recipe="rowwise")) is None
    assert float8_summary(None) is None
