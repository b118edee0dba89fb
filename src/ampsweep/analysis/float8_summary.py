"""The float8 layers of a run's model in brief: how many there are, which layers are none, and what they can gain."""

from collections import defaultdict
from dataclasses import dataclass

from ampsweep.analysis.float8_gain import Float8Gain, float8_gain
from ampsweep.record.parts import Float8Proof, WhyKept


@dataclass(frozen=True)
class Float8Summary:
    """The layers that multiply in float8, and those that do not."""

    recipe: str
    num_converted: int
    emulated: str | None
    """The reason why the device emulates them; None: it does not."""
    kept: tuple[tuple[WhyKept, tuple[str, ...]], ...]
    """Names of the other layers by the reason why they are not in float8."""
    gain: Float8Gain | None
    """None where no layer was called."""


def float8_summary(proof: Float8Proof | None) -> Float8Summary | None:
    """Sum up the float8 part of a proof; None where there is none, or no step was traced."""
    if proof is None or proof.recipe is None or proof.converted is None:
        return None
    kept: dict[WhyKept, list[str]] = defaultdict(list)
    for layer in proof.kept or ():
        kept[layer.why].append(layer.name)
    return Float8Summary(
        proof.recipe,
        len(proof.converted),
        proof.emulated,
        tuple((why, tuple(names)) for why, names in kept.items()),
        float8_gain((layer.shape for layer in proof.converted), proof.recipe),
    )
