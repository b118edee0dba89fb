"""Headroom of a training in low-precision formats, judged from the magnitudes of a run in any format.

A training under autocast with a scaler works in a format if no cast activation or weight exceeds the largest number,
and some scale keeps all gradients below it while next to nothing of any layer's gradients rounds to zero. `GradScaler`
comes down from too large a scale within a few steps, but needs thousands to come up. Only the range is judged, not the
digits, and values that no module returns, such as hand-written attention scores, have no magnitudes here.

In 8-bit formats each tensor has its own scale, which brings its largest element to the format's largest number: e4m3
for activations and weights, e5m2 for gradients of activations, as in "FP8 Formats for Deep Learning" (P. Micikevicius
et al., 2022, https://arxiv.org/abs/2209.05433).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from ampsweep.finding import Finding
from ampsweep.numeric_formats import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FORMATS, NumericFormat
from ampsweep.records.numerics import Magnitudes, RunNumerics, TensorKind
from ampsweep.text import number, percent, plural

MAX_LOST_PCT: Final = 5.0  # of the sum of a layer's magnitudes: that of the smallest quarter of normal values
INITIAL_SCALE: Final = 65536.0  # the default of `torch.amp.GradScaler`
SMALLEST_SCALE: Final = 2.0**-24  # training is given up below this scale (`ampsweep.recorder.divergence`)
HeadroomVerdict = Literal["works", "works_with_another_scale", "works_with_tensor_scales", "does_not_work"]
"""`works_with_another_scale` than the current scale, or with a scale per tensor in 8-bit formats."""
ObstacleKind = Literal["too_large", "vanishes"]

SCALED: Final[tuple[TensorKind, ...]] = ("activation_gradient", "gradient")  # kinds that the scale multiplies
_CAST_KINDS: Final[Mapping[str, tuple[TensorKind, ...]]] = {
    FLOAT16.name: ("activation", "weight", *SCALED),
    BFLOAT16.name: ("activation", "weight", *SCALED),
    FLOAT8_E4M3.name: ("activation", "weight"),
    FLOAT8_E5M2.name: ("activation_gradient",),
}
_OF_8_BITS: Final = (FLOAT8_E4M3.name, FLOAT8_E5M2.name)
KIND_NAMES: Final[dict[TensorKind, str]] = {
    "activation": "activations",
    "activation_gradient": "gradients of activations",
    "gradient": "gradients of parameters",
    "weight": "weights",
}


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    kind: ObstacleKind
    layer: str
    tensor: TensorKind
    max_abs: float  # unscaled
    lost_pct: float  # share of the sum of its magnitudes that rounds to zero at the best scale


class Headroom(Finding):
    format: str
    verdict: HeadroomVerdict
    scale: float  # the scale that is judged; 1 for formats without a scaler
    best_scale: float  # `scale` itself if it works, else the scale to begin with
    min_scale: float  # smallest scale at which no layer's gradients lose more than `MAX_LOST_PCT`; 0 for 8-bit formats
    max_scale: float  # largest scale at which no gradient overflows; inf for 8-bit formats
    fullest_layer: str | None = None  # that of the largest activation or weight
    fullest_pct: float | None = None  # its share of the format's largest number
    obstacles: tuple[Obstacle, ...] = ()  # in the order of the model

    @property
    def sentence(self) -> str:
        casts = f" for {' and '.join(KIND_NAMES[kind] for kind in _CAST_KINDS[self.format])}"
        return f"{self.format}{casts if self.format in _OF_8_BITS else ''} {self._clause}"

    def given_finding(self, number_of_finding: int) -> str:
        """The sentence, given a finding of values or digits that are lost in the format whatever its range."""
        if self.verdict == "does_not_work":
            return self.sentence
        return f"{self.format} does not work until finding {number_of_finding} is fixed"

    @property
    def _clause(self) -> str:
        scales = f"has the range with scales from {scale_text(self.min_scale)} to {scale_text(self.max_scale)}"
        if self.obstacles:
            more = len({obstacle.layer for obstacle in self.obstacles}) - 1
            rest = f", and {plural(more, 'more layer')} in its way" if more else ""
            return f"does not work: {self._describe(self.obstacles[0])}{rest}"
        if self.verdict == "works_with_tensor_scales":
            return "has the range if each tensor has a scale of its own"
        if self.verdict == "works_with_another_scale":
            return f"{scales}, not {scale_text(self.scale)}: use precision.init_scale={self.best_scale:g}"
        if self.format == BFLOAT16.name:
            return "has the range of float32"
        is_scaled = math.isfinite(self.max_scale)
        fits = f"{scales}, including {scale_text(self.scale)}" if is_scaled else "has the range"
        if self.fullest_layer is None or self.fullest_pct is None:
            return fits
        fullest = f"the largest value, in {layer_text(self.fullest_layer)}, is {percent(self.fullest_pct)} of its limit"
        return f"{fits}{';' if is_scaled else ':'} {fullest}"

    def _describe(self, obstacle: Obstacle) -> str:
        layer, kind = layer_text(obstacle.layer), KIND_NAMES[obstacle.tensor]
        if obstacle.kind == "too_large":
            reached = "inf" if math.isinf(obstacle.max_abs) else scale_text(obstacle.max_abs)
            largest = number(FORMATS[self.format].max)
            return f"{kind} of {layer} reach {reached}, above its largest number, {largest}"
        is_scaled = obstacle.tensor in SCALED and self.format not in _OF_8_BITS
        scale = f" with a scale of {scale_text(self.best_scale)}" if is_scaled else ""
        lost = f"{percent(obstacle.lost_pct)} of the sum of magnitudes (above {MAX_LOST_PCT:.0f}%)"
        return f"of {kind} of {layer}, {lost} becomes zero{scale}"


@dataclass(frozen=True)
class ExponentCounts:
    """Counts of nonzero elements by binary exponent, taken as evenly spread within an exponent."""

    counts: Mapping[int, int]  # `counts[e]` elements have a magnitude in [2**e, 2**(e + 1))

    @staticmethod
    def of(tensors: Iterable[Magnitudes]) -> "ExponentCounts":
        counts: Counter[int] = Counter()
        for tensor in tensors:
            counts.update({tensor.first_exponent + place: count for place, count in enumerate(tensor.counts) if count})
        return ExponentCounts(dict(sorted(counts.items())))

    @cached_property
    def total(self) -> int:
        return sum(self.counts.values())

    def sum_share_below(self, threshold: float) -> float:
        """Share (0 to 1) of the sum of all magnitudes that elements below the threshold hold."""
        parts = {exponent: math.ldexp(threshold, -exponent) - 1.0 for exponent in self.counts}
        below = sum(self._sum(exponent, min(max(part, 0.0), 1.0)) for exponent, part in parts.items())
        return below / self._whole if self.counts else 0.0

    def threshold_of(self, share: float) -> float | None:
        """The threshold with this share (0 to 1, exclusive) of the sum below it; None without elements."""
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
        return self.counts[exponent] * math.ldexp(part + part * part / 2, exponent)


@dataclass(frozen=True)
class _Group:
    """Tensors judged together: an activation, or the parameters of a module, some of which may be tiny."""

    layer: str
    kind: TensorKind
    max_abs: float
    counts: ExponentCounts

    def lost_pct(self, of: NumericFormat, scale: float = 1.0) -> float:
        return 100 * self.counts.sum_share_below(_zero_below(of) / scale)


def headroom_of(numerics: RunNumerics) -> dict[str, Headroom]:
    """Judge each low-precision format, by name; float16 at the run's scale, else at `INITIAL_SCALE`. Values that the
    run's own dtype has lost or overflowed are unknown; values that no low-precision operator uses do not count."""
    found = {}
    for name, kinds in _CAST_KINDS.items():
        groups = [group for group in _groups(numerics, name, kinds) if group.counts.total]
        if groups:
            scale = (INITIAL_SCALE if numerics.scale is None else numerics.scale) if name == FLOAT16.name else 1.0
            found[name] = _judged(FORMATS[name], groups, scale)
    return found


def _judged(of: NumericFormat, groups: Sequence[_Group], scale: float) -> Headroom:
    scaled = () if of.name in _OF_8_BITS else SCALED
    gradients = [group for group in groups if group.kind in scaled]
    largest = max((group.max_abs for group in gradients), default=0.0)
    max_scale = of.max / largest if largest else math.inf
    thresholds = [group.counts.threshold_of(MAX_LOST_PCT / 100) for group in gradients]
    min_scale = max((_zero_below(of) / threshold for threshold in thresholds if threshold is not None), default=0.0)
    unscaled = [group for group in groups if group.kind not in scaled]
    fullest = max(unscaled, key=lambda group: group.max_abs, default=None)
    best = _best_scale(scale, min_scale, max_scale) if of is FLOAT16 else scale
    obstacles = tuple(_obstacles(of, groups, best))
    verdict: HeadroomVerdict = "works" if min_scale <= scale <= max_scale else "works_with_another_scale"
    if obstacles:
        verdict = "does_not_work"
    elif of.name in _OF_8_BITS and any(group.max_abs > of.max or group.lost_pct(of) > MAX_LOST_PCT for group in groups):
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
    """The scale itself if it is allowed; else the result of halving, or the middle of the allowed doublings."""
    if min_scale <= scale <= max_scale or math.isinf(max_scale):
        return scale
    largest = scale * 2.0 ** math.floor(math.log2(max_scale / scale))
    if scale < min_scale:
        middle = scale * 2.0 ** round((math.log2(min_scale / scale) + math.log2(max_scale / scale)) / 2)
        return middle if min_scale <= middle <= max_scale else largest
    return max(largest, SMALLEST_SCALE)


def _obstacles(of: NumericFormat, groups: Sequence[_Group], scale: float) -> Iterator[Obstacle]:
    for group in groups:
        has_own = of.name in _OF_8_BITS
        own_scale = scale if group.kind in SCALED else 1.0
        if has_own and math.isfinite(group.max_abs):  # after an overflow the largest value is unknown
            own_scale = of.max / group.max_abs
        lost_pct = group.lost_pct(of, own_scale)
        kind: ObstacleKind
        if not has_own and group.max_abs * own_scale > of.max:
            kind = "too_large"
        elif lost_pct > MAX_LOST_PCT:
            kind = "vanishes"
        else:
            continue
        yield Obstacle(kind=kind, layer=group.layer, tensor=group.kind, max_abs=group.max_abs, lost_pct=lost_pct)


def _groups(numerics: RunNumerics, of: str, kinds: Sequence[TensorKind]) -> Iterator[_Group]:
    together: dict[tuple[str, TensorKind], list[Magnitudes]] = defaultdict(list)
    for tensor in numerics.magnitudes:
        if tensor.kind not in kinds or tensor.layer in numerics.outside:
            continue
        if tensor.kind in ("weight", "gradient"):
            together[tensor.layer.rpartition(".")[0], tensor.kind].append(tensor)
        elif tensor.num_elements > tensor.num_steps:  # a scalar is a loss, which autocast keeps in float32
            together[tensor.layer, tensor.kind].append(tensor)
    for (layer, kind), tensors in together.items():
        overflown = kind not in SCALED and any(tensor.num_nonfinite and tensor.dtype == of for tensor in tensors)
        max_abs = math.inf if overflown else max(tensor.max_abs for tensor in tensors)
        yield _Group(layer, kind, max_abs, ExponentCounts.of(tensors))


def _zero_below(of: NumericFormat) -> float:
    """The magnitude below which everything rounds to zero."""
    return 2.0 ** (of.min_exponent - 1)


def layer_text(layer: str) -> str:
    return layer or "the model"


def scale_text(value: float) -> str:
    """Format a scale or magnitude of any size: powers of two exactly, others with three digits.

    >>> scale_text(65536.0), scale_text(526647.6), scale_text(0.5), scale_text(5.27e16)
    ('65,536', '527,000', '0.500', '5.3e+16')
    """
    if value >= 1e7:
        return f"{value:.1e}"
    if value >= 1000:
        return f"{value if math.frexp(value)[0] == 0.5 else float(f'{value:.3g}'):,.0f}"
    return number(value)
