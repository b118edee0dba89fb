"""An estimate of what float8 can gain over bfloat16 in linear layers, by a roofline and by published measurements.

The roofline is that of torchao (`torchao/testing/training/roofline_utils.py` of 0.18): a kernel takes the longest of
its arithmetic, its memory traffic and its launch. A layer multiplies three times a step, for its output and for two
gradients. In float8 it also finds the largest value of each operand and rounds it: kernels that move bytes only.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ampsweep.finding import Finding
from ampsweep.record.parts import Float8Proof, LinearShape, WhyKept
from ampsweep.text import listed, milliseconds, plural, ratio

_BF16_FLOPS: Final = 989.4e12
_FLOAT8_FLOPS: Final = 1978.9e12
_BYTES_PER_S: Final = 3.35e12
"""Dense arithmetic and memory bandwidth of an H100 SXM, from NVIDIA's architecture whitepaper."""
_REACHED_FLOPS: Final = 0.78
_REACHED_BYTES: Final = 0.92
"""The shares of them that large kernels reach, as torchao measured."""
_LAUNCH_S: Final = 2e-6
"""The time of a kernel that does nothing, as torchao measured."""

_BF16: Final = 2
_FLOAT8: Final = 1


class Float8Gain(Finding):
    """The estimate for all converted layers of a model on an H100."""

    recipe: str
    num_layers: int
    bf16_us: float
    """Microseconds of a step in their matrix multiplications in bfloat16."""
    float8_us: float
    """The same in float8, with the kernels that round."""
    num_measured_slower: int
    """Layers with sizes at which torchao measured float8 to be no faster."""

    @property
    def speedup(self) -> float:
        return self.bf16_us / self.float8_us

    @property
    def can_gain(self) -> bool:
        return self.speedup > 1 and self.num_measured_slower < self.num_layers

    @property
    def sentence(self) -> str:
        layers, slower = plural(self.num_layers, "float8 layer"), self.num_measured_slower
        bf16, float8 = milliseconds(self.bf16_us / 1000), milliseconds(self.float8_us / 1000)
        which = "all have" if slower == self.num_layers else f"{slower} of them {'has' if slower == 1 else 'have'}"
        measured = f", and {which} sizes that torchao measured to gain nothing" if slower else ""
        can_gain = f"can gain time where the step is compiled, up to {ratio(self.speedup)}"
        gain = can_gain if self.can_gain else "can gain no time at this size"
        times = f"{bf16} a step in bfloat16, {float8} in float8 with rounding"
        roofline = f"by torchao's roofline of an H100 its {layers} take {times}"
        return f"fp8_{self.recipe} {gain}: {roofline}{measured}"


def float8_gain(shapes: Iterable[LinearShape], recipe: str) -> Float8Gain | None:
    """Estimate the gain of torchao's `recipe`, `tensorwise` or `rowwise`; None where no layer was called."""
    called = [shape for shape in shapes if shape.rows]
    if not called:
        return None
    return Float8Gain(
        recipe=recipe,
        num_layers=len(called),
        bf16_us=1e6 * sum(shape.calls * _products_s(shape, _BF16_FLOPS, _BF16) for shape in called),
        float8_us=1e6
        * sum(shape.calls * (_products_s(shape, _FLOAT8_FLOPS, _FLOAT8) + _casts_s(shape, recipe)) for shape in called),
        num_measured_slower=sum(_MEASURED_SLOWER[recipe](shape.out_features, shape.in_features) for shape in called),
    )


def _products_s(shape: LinearShape, flops_per_s: float, operand_bytes: int) -> float:
    """Seconds of the three products of one call; results are in bfloat16."""
    m, k, n = shape.rows / shape.calls, shape.in_features, shape.out_features
    arithmetic_s = 2 * m * k * n / flops_per_s / _REACHED_FLOPS
    sizes = (m * k, k * n, m * n)
    return sum(max(arithmetic_s, _moving_s(operand_bytes * (sum(sizes) - out) + _BF16 * out)) for out in sizes)


def _casts_s(shape: LinearShape, recipe: str) -> float:
    """Seconds of rounding input, weight and gradient of one call, none of it fused with what comes before."""
    m, k, n = shape.rows / shape.calls, shape.in_features, shape.out_features
    return sum(map(_moving_s, _MOVED[recipe](m * k, m * n, k * n)))


def _moving_s(num_bytes: float) -> float:
    return max(num_bytes / _BYTES_PER_S / _REACHED_BYTES, _LAUNCH_S)


def _moved_tensorwise(inputs: float, gradients: float, weights: float) -> Iterator[float]:
    """Bytes that each kernel moves: two find the largest value, then one (two of weights) write both layouts."""
    for size in (inputs, gradients):
        yield from (_BF16 * size, 0, (_BF16 + 2 * _FLOAT8) * size)
    yield from (_BF16 * weights, 0, (_BF16 + _FLOAT8) * weights, (_BF16 + _FLOAT8) * weights)


def _moved_rowwise(inputs: float, gradients: float, weights: float) -> Iterator[float]:
    """Bytes that each kernel moves: rows are scaled and rounded in one, columns after they have become rows."""
    for size in (inputs, gradients):
        yield from ((2 * _BF16 + _FLOAT8) * size, (_BF16 + _FLOAT8) * size)
    yield from ((_BF16 + _FLOAT8) * weights, 2 * _BF16 * weights, (_BF16 + _FLOAT8) * weights)


_MOVED: Final = {"tensorwise": _moved_tensorwise, "rowwise": _moved_rowwise}
_MEASURED_SLOWER: Final[dict[str, Callable[[int, int], bool]]] = {
    "tensorwise": lambda n, k: k <= 4096 and n <= 1024,
    "rowwise": lambda n, k: n <= 2048 or k <= 1024 or (n <= 4096 and k <= 2048),
}
"""Sizes (outputs, inputs) that torchao's filter `_auto_filter_for_recipe` leaves in bfloat16, by its benchmarks on
H100s (https://github.com/pytorch/ao/tree/main/torchao/float8#performance)."""


_WHY: Final[dict[WhyKept, str]] = {
    "output": "the output layer",
    "size": "sizes that are no multiples of 16",
    "fp32_modules": "kept in float32",
    "subclass": "subclasses of nn.Linear",
    "changed": "hooks, another forward or a computed weight",
    "no_linear": "not nn.Linear",
}


class Float8Summary(Finding):
    """The layers that multiply in float8, and those that do not."""

    recipe: str
    num_converted: int
    emulated: str | None
    """The reason why the device emulates them; None: it does not."""
    kept: tuple[tuple[WhyKept, tuple[str, ...]], ...]
    """Names of the other layers by the reason why they are not in float8."""
    gain: Float8Gain | None
    """None where no layer was called."""

    @property
    def sentence(self) -> str:
        return self.layers if self.gain is None else f"{self.layers}. {self.gain.sentence}"

    @property
    def layers(self) -> str:
        emulation = "" if self.emulated is None else f" (emulated: {self.emulated})"
        others = "; ".join(f"{listed(names, limit=4)} ({_WHY[why]})" for why, names in self.kept)
        return f"{plural(self.num_converted, 'layer')} in float8{emulation}" + (f", not {others}" if others else "")


def float8_summary(proof: Float8Proof | None) -> Float8Summary | None:
    """Sum up the float8 part of a proof; None without a traced step."""
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
        gain=float8_gain((layer.shape for layer in proof.converted), proof.recipe),
    )


def emulated_memory(arm: str, why: str) -> str:
    """A sentence on the bytes predicted for an arm that the device emulates."""
    return f"{arm} is emulated, and its bytes are those of the emulation, which multiplies float32 copies: {why}."
