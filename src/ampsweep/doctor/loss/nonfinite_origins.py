"""The operators of a step that turn finite numbers into inf or NaN because of their dtype, found in a single replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.numeric_formats import FORMATS, dtype_name
from ampsweep.observe.calls import UNWRITTEN, Call, Phase, Site, Sites, observe
from ampsweep.observe.functions import FunctionMode
from ampsweep.observe.operators import schema_of

if TYPE_CHECKING:
    from ampsweep.doctor.replay import Replay

FILLS: Final = ("fill", "fill_", "full", "full_like", "masked_fill", "masked_fill_", "where", "scalar_tensor")
"""Operators that write given values: their inf is intended, unless float32 would have kept it finite."""
_OF_PROBABILITIES: Final = frozenset({"binary_cross_entropy"})  # clamp the log of exactly 0 or 1
_MOST_STEPS_BACK: Final = 8  # operators followed back at most from a division to the sum that lost its constant
_MOST_SOURCES: Final = 64  # operators before an origin whose modules are noted at most


@dataclass(frozen=True, kw_only=True)
class NonfiniteOrigin:
    """A call that turned finite inputs into inf or NaN, or masks such a value."""

    phase: Phase
    input_max_abs: float  # the largest magnitude among its inputs
    has_nan: bool = False
    float32_max_abs: float | None = None  # the largest finite magnitude of the result in float32
    eps: float | None = None  # a constant added before its last tensor that is zero in that dtype
    reduced_elements: int = 1  # input elements per result element
    call: Call = field(repr=False)
    site: Site = field(repr=False)
    is_range: bool = field(default=False, repr=False)  # in float32 the result is finite
    divisor_zeros: int = field(default=0, repr=False)  # zeros in its last input tensor
    has_negative: bool = field(default=False, repr=False)  # that tensor has negative numbers
    scalars: tuple[float, ...] = field(default=(), repr=False)  # its number arguments
    is_two_valued: bool = field(default=False, repr=False)  # its first tensor is like a mask
    sources: tuple[str | None, ...] = field(default=(), repr=False)  # modules of its inputs, the nearest first
    is_certain: bool = field(default=False, repr=False)  # it clamps the log of exactly 0 or 1


class OriginTracer:
    """Finds the origins of a step; inf and NaN in their results are replaced, so that each origin shows by itself."""

    def __init__(self, replay: "Replay") -> None:
        self.origins: list[NonfiniteOrigin] = []
        self.modules: set[str] = set()  # names of the modules that called an operator; empty for the model itself
        functions = FunctionMode(replay.device.type)
        self._tensors = TensorOrigins(replay.model, replay.trainer.optimizers.values(), functions)
        self._lost: dict[TensorOrigin, float] = {}  # constants that vanished when they were added to tensors
        self._sites = Sites()
        self._found: dict[str, Any] | None = None

    def around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator and check its result: if it is not finite, also in float32. For `observe`."""
        self._found = None
        if str(func.overloadpacket) in UNWRITTEN:
            return func(*args, **kwargs)
        inputs = floats_in((args, kwargs))
        had_inf, had_nan = inf_and_nan(inputs)
        is_in_place = schema_of(func).is_mutable
        before = facts_of(inputs) if is_in_place else None
        result = func(*args, **kwargs)
        outputs = floats_in(result)
        if is_in_place:
            outputs += [tensor for tensor in inputs if all(tensor is not other for other in outputs)]
        has_inf, has_nan = inf_and_nan(outputs)
        makes_nan, name = has_nan and not had_nan, func.overloadpacket.__name__
        if makes_nan or (has_inf and not had_inf):
            found = facts_of_result(func, args, kwargs, outputs)
            if found["is_range"] or makes_nan or name not in FILLS:
                self._found = (before or facts_of(inputs)) | found | {"has_nan": makes_nan}
                eps = lost_on_the_way([self._tensors.of(tensor) for tensor in inputs[-1:]], self._lost)
                self._found |= {"eps": eps, "sources": self._sources(inputs)}
                for tensor in outputs:
                    if not bool(tensor.isfinite().all()):
                        # For autograd a tensor with a new version has been changed by the user.
                        with torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor):
                            tensor.nan_to_num_()
        elif name in _OF_PROBABILITIES and bool(((inputs[0] == 0) | (inputs[0] == 1)).any()):
            self._found = facts_of(inputs) | {"is_certain": True, "sources": self._sources(inputs)}
        return result

    def on_call(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        site = self._sites.passed(call)
        if call.module is not None:
            self.modules.add(call.module)
        if call.phase == "forward":
            self._tensors.note(call, args, kwargs, result)
            outputs = [*tensors_in(result)]
            if (lost := lost_scalar(args, outputs)) is not None:
                self._lost[self._tensors.of(outputs[0])] = lost
        if self._found is not None:
            self.origins.append(NonfiniteOrigin(call=call, site=site, phase=call.phase, **self._found))
            self._found = None

    def _sources(self, tensors: Sequence[Tensor]) -> tuple[str | None, ...]:
        found: dict[str | None, None] = {}
        seen: set[TensorOrigin] = set()
        waiting = [self._tensors.of(tensor) for tensor in tensors]
        while waiting and len(seen) < _MOST_SOURCES:
            made = waiting.pop(0).made
            if made not in seen and made.call is not None:
                seen.add(made)
                found[made.call.module] = None
                waiting += made.sources
        return tuple(found)


def trace_origins(replay: "Replay", num_before: int) -> OriginTracer:
    """Find the origins of inf and NaN in the step after `num_before` others; the replay is spoiled by that."""
    for _ in range(num_before):
        replay.step()
    tracer = OriginTracer(replay)
    with observe(replay.model, tracer.on_call, around=tracer.around):
        replay.step()
    return tracer


def floats_in(values: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(values) if tensor.is_floating_point()]


def inf_and_nan(tensors: Sequence[Tensor]) -> tuple[bool, bool]:
    return any(bool(value.isinf().any()) for value in tensors), any(bool(value.isnan().any()) for value in tensors)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def facts_of(inputs: Sequence[Tensor]) -> dict[str, Any]:
    filled = [tensor for tensor in inputs if tensor.numel()]
    if not filled:
        return {"input_max_abs": 0.0}
    signed = filled[-1].detach().float()
    return {
        "input_max_abs": max(max_abs(filled) or 0.0, 0.0),
        "divisor_zeros": int((signed == 0).sum()),
        "has_negative": bool((signed < 0).any()),
        "is_two_valued": filled[0].numel() > 2 and torch.unique(filled[0]).numel() <= 2,
    }


def facts_of_result(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Tensor]
) -> dict[str, Any]:
    """What the same call in float32 shows, if it writes nothing in place."""
    wide = None if schema_of(func).is_mutable else in_float32(func, args, kwargs)
    return {
        "is_range": wide is not None and all_finite(wide),
        "float32_max_abs": None if wide is None else max_abs(wide),
        "scalars": scalars_in(args),
        "reduced_elements": reduced(floats_in((args, kwargs)), outputs),
    }


def max_abs(tensors: Sequence[Tensor]) -> float | None:
    found = [float(finite.abs().max()) for tensor in tensors if (finite := tensor[tensor.isfinite()]).numel()]
    return max(found) if found else None


def scalars_in(args: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(arg) for arg in args if isinstance(arg, int | float) and not isinstance(arg, bool))


def lost_scalar(args: Sequence[Any], outputs: Sequence[Tensor]) -> float | None:
    """The first number argument that is not zero but rounds to zero in the dtype of the result."""
    known = FORMATS.get(dtype_name(outputs[0].dtype)) if outputs else None
    if known is None:
        return None
    smallest = 2.0 ** (known.min_exponent - 1)
    return next((scalar for scalar in scalars_in(args) if 0 < abs(scalar) <= smallest), None)


def lost_on_the_way(level: Sequence[TensorOrigin], lost: Mapping[TensorOrigin, float]) -> float | None:
    """The constant that vanished when it was added to one of these tensors or of those before them."""
    for _ in range(_MOST_STEPS_BACK):
        if (found := next((lost[origin] for origin in level if origin in lost), None)) is not None:
            return found
        level = [source for origin in level for source in origin.sources[:1]]
    return None


def reduced(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    if len(inputs) != 1 or not outputs or not outputs[0].numel():
        return 1
    return max(1, inputs[0].numel() // outputs[0].numel())


def in_float32(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor] | None:
    asked = kwargs.get("dtype")
    if asked is not None and asked.is_floating_point:
        kwargs = kwargs | {"dtype": torch.float32}
    args, kwargs = map_tensors((args, kwargs), lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
    try:
        return floats_in(func(*args, **kwargs))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
