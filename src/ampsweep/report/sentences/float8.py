"""Float8 layers in words: which layers multiply in float8 and which do not, and what that can gain."""

from typing import Final

from ampsweep.analysis.float8_gain import Float8Gain, Float8Summary
from ampsweep.record.parts import WhyKept
from ampsweep.text import listed, milliseconds, plural, ratio

_MOST_NAMES: Final = 4
_WHY: Final[dict[WhyKept, str]] = {
    "output": "the output layer",
    "size": "sizes that are no multiples of 16",
    "fp32_modules": "kept in float32",
    "subclass": "subclasses of nn.Linear",
    "changed": "hooks, another forward or a computed weight",
    "no_linear": "not nn.Linear",
}


def layers(of: Float8Summary) -> str:
    """Tell how many layers multiply in float8, and name the others with the reason."""
    emulation = "" if of.emulated is None else f" (emulated: {of.emulated})"
    others = "; ".join(f"{listed(names, _MOST_NAMES)} ({_WHY[why]})" for why, names in of.kept)
    return f"{plural(of.num_converted, 'layer')} in float8{emulation}" + (f", not {others}" if others else "")


def gain(of: Float8Gain, recipe: str) -> str:
    """Tell before a training what float8 can gain in its layers, by the roofline and by torchao's measurements."""
    times = f"{milliseconds(of.bf16_us / 1000)} a step in bfloat16, {milliseconds(of.float8_us / 1000)} in float8"
    roofline = (
        f"by torchao's roofline of an H100 its {plural(of.num_layers, 'float8 layer')} take {times} with rounding"
    )
    slower = of.num_measured_slower
    which = (
        "all have sizes" if slower == of.num_layers else f"{slower} of them {'has' if slower == 1 else 'have'} sizes"
    )
    measured = f", and {which} that torchao measured to gain nothing" if slower else ""
    if of.can_gain:
        return f"fp8_{recipe} can gain time where the step is compiled, up to {ratio(of.speedup)}: {roofline}{measured}"
    return f"fp8_{recipe} can gain no time at this size: {roofline}{measured}"


def emulated_memory(arm: str, why: str) -> str:
    """Tell that the bytes predicted for an arm are those of its emulation."""
    return f"{arm} is emulated, and its bytes are those of the emulation, which multiplies float32 copies: {why}."
