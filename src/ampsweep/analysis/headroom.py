"""The headroom of a training in a low-precision format, judged from the magnitudes of any run of it.

A training under autocast with a scaler works in a format if no activation or weight that is cast exceeds the format's
largest number, and if there is a scale with which no gradient does either and next to nothing of any layer's gradients
falls below half of the smallest number, where it becomes zero. `GradScaler` finds its way down from too large a scale
within a few steps; up from one that is too small it takes thousands.

Values that no module returns, such as the scores of an attention written by hand, are in no magnitudes. A layer whose
gradients vanish counts even if it hardly contributes to the loss.

In the formats of 8 bits each tensor has a scale of its own, which brings its largest element to the format's largest
number. They are used as in "FP8 Formats for Deep Learning" (P. Micikevicius et al., 2022,
https://arxiv.org/abs/2209.05433): e4m3 for activations and weights, e5m2 for gradients of activations.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from ampsweep.finding import Finding
from ampsweep.numeric_formats import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FORMATS, NumericFormat
from ampsweep.record.numerics import Magnitudes, RunNumerics, TensorKind
from ampsweep.text import number, percent, plural

MAX_LOST_PCT: Final = 5.0
"""The share of the sum of a layer's magnitudes that may become zero: that of the smallest quarter of normal values."""
INITIAL_SCALE: Final = 65536.0
"""The scale with which `torch.amp.GradScaler` begins."""
SMALLEST_SCALE: Final = 2.0**-24
"""The scale below which a training is given up (`ampsweep.recorder.divergence`)."""
HeadroomVerdict = Literal["works", "works_with_another_scale", "works_with_tensor_scales", "does_not_work"]
"""`works_with_another_scale`: than the present one; `works_with_tensor_scales`: a format of 8 bits, each tensor with a
scale of its own."""
ObstacleKind = Literal["too_large", "vanishes"]

SCALED: Final[tuple[TensorKind, ...]] = ("activation_gradient", "gradient")
"""The kinds that the scale multiplies."""
_CAST_KINDS: Final[Mapping[str, tuple[TensorKind, ...]]] = {
    FLOAT16.name: ("activation", "weight", *SCALED),
    BFLOAT16.name: ("activation", "weight", *SCALED),
    FLOAT8_E4M3.name: ("activation", "weight"),
    FLOAT8_E5M2.name: ("activation_gradient",),
}
_OF_8_BITS: Final = (FLOAT8_E4M3.name, FLOAT8_E5M2.name)
_CASTS_OF: Final = {
    FLOAT8_E4M3.name: f"{FLOAT8_E4M3.name} for activations and weights",
    FLOAT8_E5M2.name: f"{FLOAT8_E5M2.name} for gradients of activations",
}
KIND_NAMES: Final[dict[TensorKind, str]] = {
    "activation": "activations",
    "activation_gradient": "gradients of activations",
    "gradient": "gradients of parameters",
    "weight": "weights",
    "update": "updates",
}


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """A layer that is in the way of a format."""

    kind: ObstacleKind
    layer: str
    tensor: TensorKind
    max_abs: float
    """Without the scale."""
    lost_pct: float
    """The share of the sum of its magnitudes that becomes zero, with the best scale."""


class Headroom(Finding):
    """The room that a training has in a format: whether it works there, within which scales, and what is in its way."""

    format: str
    verdict: HeadroomVerdict
    scale: float
    """The scale that it is judged from; 1 for formats without a scaler."""
    best_scale: float
    """The scale itself where it works; else the one to begin with."""
    min_scale: float
    """The smallest scale with which no layer's gradients lose more than `MAX_LOST_PCT`; 0 of formats of 8 bits."""
    max_scale: float
    """The largest scale with which no gradient exceeds the largest number; inf of formats of 8 bits."""
    fullest_layer: str | None = None
    """The layer with the largest activation or weight."""
    fullest_pct: float | None = None
    """The value in percent of the largest number of the format."""
    obstacles: tuple[Obstacle, ...] = ()
    """The layers in the way, in the order of the model."""

    @property
    def sentence(self) -> str:
        return f"{_CASTS_OF.get(self.format, self.format)} {self._clause}"

    @property
    def short(self) -> str:
        """The same in a few words, without the format."""
        match self.verdict:
            case "works":
                return "works"
            case "works_with_another_scale":
                return f"works with a scale of {scale_text(self.best_scale)}"
            case "works_with_tensor_scales":
                return "works with a scale for each tensor"
            case "does_not_work":
                return f"does not work ({layer_text(self.obstacles[0].layer)})"

    def unless_mended(self, number_of_finding: int) -> str:
        """The sentence, where a diagnosis found an operator that makes inf or NaN in the format at any scale."""
        if self.verdict == "does_not_work":
            return self.sentence
        mended = f"{self.format} does not work until finding {number_of_finding} is mended"
        return f"{mended}; by what layers return, it then{self.sentence.removeprefix(self.format)}"

    @property
    def _clause(self) -> str:
        match self.verdict:
            case "works":
                return f"works{self._room}"
            case "works_with_tensor_scales":
                return "works if each tensor has a scale of its own"
            case "works_with_another_scale":
                scales = f"{scale_text(self.min_scale)} to {scale_text(self.max_scale)}"
                return (
                    f"works with scales from {scales}, of which {scale_text(self.scale)} is none: "
                    f"use precision.init_scale={self.best_scale:g}"
                )
            case "does_not_work":
                first, more = self.obstacles[0], len({one.layer for one in self.obstacles}) - 1
                rest = f", and {plural(more, 'more layer')} in its way" if more else ""
                return f"does not work: {self._in_its_way(first)}{rest}"

    @property
    def _room(self) -> str:
        if self.format == BFLOAT16.name:
            return ": its range is that of float32"
        told = []
        if math.isfinite(self.max_scale):
            within = f"{scale_text(self.min_scale)} to {scale_text(self.max_scale)}"
            told.append(f" with scales from {within}, of which {scale_text(self.scale)} is one")
        if self.fullest_pct is not None and self.fullest_layer is not None:
            value = f"the largest value, in {layer_text(self.fullest_layer)}, is {percent(self.fullest_pct)}"
            told.append(f"{'; ' if told else ': '}{value} of its limit")
        return "".join(told)

    def _in_its_way(self, one: Obstacle) -> str:
        layer, kind = layer_text(one.layer), KIND_NAMES[one.tensor]
        if one.kind == "too_large":
            reached = "inf" if math.isinf(one.max_abs) else scale_text(one.max_abs)
            largest = number(FORMATS[self.format].max)
            return f"{kind} of {layer} reach {reached}, above its largest number, {largest}"
        is_scaled = one.tensor in SCALED and self.format not in _OF_8_BITS
        scale = f" with a scale of {scale_text(self.best_scale)}" if is_scaled else ""
        lost = f"{percent(one.lost_pct)} of the sum of magnitudes (above {MAX_LOST_PCT:.0f}%)"
        return f"of {kind} of {layer}, {lost} becomes zero{scale}"


@dataclass(frozen=True)
class ExponentCounts:
    """Numbers of elements other than zero by the exponent of two of their magnitudes, taken as spread evenly within."""

    counts: Mapping[int, int]
    """`counts[e]` elements have a magnitude in [2**e, 2**(e + 1))."""

    @staticmethod
    def of(tensors: Iterable[Magnitudes]) -> "ExponentCounts":
        counts: Counter[int] = Counter()
        for one in tensors:
            counts.update({one.first_exponent + place: count for place, count in enumerate(one.counts) if count})
        return ExponentCounts(dict(sorted(counts.items())))

    @cached_property
    def total(self) -> int:
        return sum(self.counts.values())

    def sum_share_below(self, threshold: float) -> float:
        """The share, 0 to 1, that elements below a threshold have of the sum of all magnitudes."""
        below = sum(self._sum(exponent, _part_below(exponent, threshold)) for exponent in self.counts)
        return below / self._whole if self.counts else 0.0

    def threshold_of(self, share: float) -> float | None:
        """The threshold below which elements have this share (0 to 1, exclusive) of the sum of all magnitudes."""
        left = share * self._whole
        for exponent in self.counts:
            of_exponent = self._sum(exponent, 1.0)
            if left < of_exponent:
                # Magnitudes from 2**e to (1 + p) 2**e, count * p of them, add up to count * 2**e * (p + p**2 / 2).
                part = math.sqrt(1.0 + 3.0 * left / of_exponent) - 1.0
                return math.ldexp(1.0 + part, exponent)
            left -= of_exponent
        return None

    @cached_property
    def _whole(self) -> float:
        return sum(self._sum(exponent, 1.0) for exponent in self.counts)

    def _sum(self, exponent: int, part: float) -> float:
        """The sum of the magnitudes with an exponent, up to a part of their range."""
        return self.counts[exponent] * math.ldexp(part + part * part / 2, exponent)


def _part_below(exponent: int, threshold: float) -> float:
    """The part of the magnitudes with an exponent that is below a threshold."""
    return min(max(math.ldexp(threshold, -exponent) - 1.0, 0.0), 1.0)


@dataclass(frozen=True)
class _Group:
    """Tensors that are judged together: an activation, or the parameters of one module, few of which may be tiny."""

    layer: str
    kind: TensorKind
    max_abs: float
    counts: ExponentCounts

    def least_scale(self, of: NumericFormat) -> float:
        """The smallest scale with which no more than `MAX_LOST_PCT` of it is lost."""
        threshold = self.counts.threshold_of(MAX_LOST_PCT / 100)
        return 0.0 if threshold is None else _zero_below(of) / threshold

    def lost_pct(self, of: NumericFormat, scale: float = 1.0) -> float:
        """The share of the sum of its magnitudes that becomes zero."""
        return 100 * self.counts.sum_share_below(_zero_below(of) / scale)


def headroom_of(numerics: RunNumerics) -> dict[str, Headroom]:
    """Judge each low-precision format, by name, by the magnitudes of a run in any dtype.

    float16 is judged from the scale of the run, else from `INITIAL_SCALE`. Values that the run's own dtype has lost or
    made infinite are unknown; those that no operator in low precision makes or takes do not count.
    """
    found = {}
    for name, kinds in _CAST_KINDS.items():
        groups = [one for one in _groups(numerics, name, kinds) if one.counts.total]
        if groups:
            scale = (INITIAL_SCALE if numerics.scale is None else numerics.scale) if name == FLOAT16.name else 1.0
            found[name] = _judged(FORMATS[name], groups, scale)
    return found


def _judged(of: NumericFormat, groups: Sequence[_Group], scale: float) -> Headroom:
    scaled = () if of.name in _OF_8_BITS else SCALED
    gradients = [one for one in groups if one.kind in scaled]
    largest = max((one.max_abs for one in gradients), default=0.0)
    max_scale = of.max / largest if largest else math.inf
    min_scale = max((one.least_scale(of) for one in gradients), default=0.0)
    fullest = max((one for one in groups if one.kind not in scaled), key=lambda one: one.max_abs, default=None)
    best = _best_scale(scale, min_scale, max_scale) if of is FLOAT16 else scale
    obstacles = tuple(_obstacles(of, groups, best))
    verdict: HeadroomVerdict = "works" if min_scale <= scale <= max_scale else "works_with_another_scale"
    if obstacles:
        verdict = "does_not_work"
    elif of.name in _OF_8_BITS and any(one.max_abs > of.max or one.lost_pct(of) > MAX_LOST_PCT for one in groups):
        verdict = "works_with_tensor_scales"
    return Headroom(
        format=of.name,
        verdict=verdict,
        scale=scale,
        best_scale=best,
        min_scale=min_scale,
        max_scale=max_scale,
        fullest_layer=None if fullest is None else fullest.layer,
        fullest_pct=None if fullest is None else 100 * fullest.max_abs / of.max,
        obstacles=obstacles,
    )


def _best_scale(scale: float, min_scale: float, max_scale: float) -> float:
    """The scale itself within the limits; else what halving leads to, or the doubling in the middle of the limits."""
    if min_scale <= scale <= max_scale or math.isinf(max_scale):
        return scale
    largest = scale * 2.0 ** math.floor(math.log2(max_scale / scale))
    if scale < min_scale:
        middle = scale * 2.0 ** round((math.log2(min_scale / scale) + math.log2(max_scale / scale)) / 2)
        return middle if min_scale <= middle <= max_scale else largest
    return max(largest, SMALLEST_SCALE)


def _obstacles(of: NumericFormat, groups: Sequence[_Group], scale: float) -> Iterator[Obstacle]:
    for one in groups:
        has_own = of.name in _OF_8_BITS and one.max_abs > 0
        own_scale = scale if one.kind in SCALED and not has_own else 1.0
        if has_own and math.isfinite(one.max_abs):  # of one that overflowed only what did fit is known
            own_scale = of.max / one.max_abs
        lost_pct = one.lost_pct(of, own_scale)
        kind: ObstacleKind
        if not has_own and one.max_abs * own_scale > of.max:
            kind = "too_large"
        elif lost_pct > MAX_LOST_PCT:
            kind = "vanishes"
        else:
            continue
        yield Obstacle(kind=kind, layer=one.layer, tensor=one.kind, max_abs=one.max_abs, lost_pct=lost_pct)


def _groups(numerics: RunNumerics, of: str, kinds: Sequence[TensorKind]) -> Iterator[_Group]:
    together: dict[tuple[str, TensorKind], list[Magnitudes]] = defaultdict(list)
    for one in numerics.magnitudes:
        if one.kind not in kinds or one.layer in numerics.outside:
            continue
        if one.kind in ("weight", "gradient"):
            together[one.layer.rpartition(".")[0], one.kind].append(one)
        elif one.num_elements > one.num_steps:  # a scalar is a loss, and autocast has it in float32
            together[one.layer, one.kind].append(one)
    for (layer, kind), tensors in together.items():
        overflown = kind not in SCALED and any(one.num_nonfinite and one.dtype == of for one in tensors)
        max_abs = math.inf if overflown else max(one.max_abs for one in tensors)
        yield _Group(layer, kind, max_abs, ExponentCounts.of(tensors))


def _zero_below(of: NumericFormat) -> float:
    """The magnitude below which everything is rounded to zero."""
    return 2.0 ** (of.min_exponent - 1)


def headroom_lines(found: Mapping[str, Headroom]) -> list[str]:
    """Two sentences at most: what float16 would do, and which of the other formats would work."""
    lines = [one.sentence for one in found.values() if one.format == FLOAT16.name]
    others = [f"{one.format}: {one.short}" for one in found.values() if one.format != FLOAT16.name]
    return [*lines, ", ".join(others)] if others else lines


def layer_text(layer: str) -> str:
    return layer or "the model"


def scale_text(value: float) -> str:
    """A scale or a magnitude, which may be of any size: powers of two as they are, others with three digits.

    >>> scale_text(65536.0), scale_text(526647.6), scale_text(0.5), scale_text(5.27e16)
    ('65,536', '527,000', '0.500', '5.3e+16')
    """
    if value >= 1e7:
        return f"{value:.1e}"
    if value >= 1000:
        return f"{value if math.frexp(value)[0] == 0.5 else float(f'{value:.3g}'):,.0f}"
    return number(value)
