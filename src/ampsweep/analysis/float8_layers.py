"""Sentences on the layers that multiply in float8 and those that do not."""

from collections import defaultdict
from typing import Final

from ampsweep.finding import Finding
from ampsweep.records.sections import Float8Proof, WhyKept
from ampsweep.text import listed, plural

_WHY: Final[dict[WhyKept, str]] = {
    "output": "the output layer",
    "size": "sizes that are no multiples of 16",
    "fp32_modules": "kept in float32",
    "subclass": "subclasses of nn.Linear",
    "changed": "hooks, another forward or a computed weight",
    "no_linear": "not nn.Linear",
}


class Float8Summary(Finding):
    recipe: str
    num_converted: int
    emulated: str | None  # why the device emulates float8; None if it does not
    kept: tuple[tuple[WhyKept, tuple[str, ...]], ...]  # names of the other layers by reason

    @property
    def sentence(self) -> str:
        emulation = "" if self.emulated is None else f" (emulated: {self.emulated})"
        others = "; ".join(f"{listed(names, limit=4)} ({_WHY[why]})" for why, names in self.kept)
        return f"{plural(self.num_converted, 'layer')} in float8{emulation}" + (f", not {others}" if others else "")


def float8_summary(proof: Float8Proof | None) -> Float8Summary | None:
    """Summarise the float8 part of a proof; None without a traced step."""
    if proof is None or proof.recipe is None or proof.converted is None:
        return None
    kept: dict[WhyKept, list[str]] = defaultdict(list)
    for layer in proof.kept or ():
        kept[layer.why].append(layer.name)
    return Float8Summary(
        recipe=proof.recipe,
        num_converted=len(proof.converted),
        emulated=proof.emulated,
        kept=tuple((why, tuple(names)) for why, names in kept.items()),
    )


def emulated_memory(arm: str, why: str) -> str:
    return f"{arm} is emulated, and its bytes are those of the emulation, which multiplies float32 copies: {why}."
