"""The operators of a step that make inf or NaN out of finite numbers because of their dtype, all in one replay."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.replay import Replay
from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.numeric_formats import FORMATS, dtype_name
from ampsweep.observe.calls import UNWRITTEN, Call, Phase, Site, Sites, observe
from ampsweep.observe.functions import FunctionMode
from ampsweep.observe.operators import schema_of

_FILLS: Final = frozenset(
    {"fill", "fill_", "full", "full_like", "masked_fill", "masked_fill_", "where", "scalar_tensor"}
)
"""Operators that write what they are given: inf from them is meant, unless float32 would have kept it finite."""
_OF_PROBABILITIES: Final = frozenset({"binary_cross_entropy"})
"""Operators whose input of exactly 0 or 1 stands for a logarithm of zero, which they cut off."""
_MOST_STEPS_BACK: Final = 8
"""Operators between a sum with a constant and the division by it that are followed at most."""
_MOST_SOURCES: Final = 64
"""Operators on the way to one that makes inf or NaN whose modules are noted at most."""


@dataclass(frozen=True, kw_only=True)
class NonfiniteOrigin:
    """A call that turned finite inputs into inf or NaN, or that hides such a value."""

    phase: Phase
    input_max_abs: float
    """The largest magnitude among its inputs."""
    has_nan: bool = False
    float32_max_abs: float | None = None
    """The largest finite magnitude of the result in float32."""
    eps: float | None = None
    """A number above zero that was added on the way to its last tensor, and is zero in the dtype of that sum."""
    reduced_elements: int = 1
    """Input elements for one of the result."""
    call: Call = field(repr=False)
    site: Site = field(repr=False)
    is_range: bool = field(default=False, repr=False)
    """The same operator in float32, with the same inputs, has a finite result: only the dtype's range is to blame."""
    divisor_zeros: int = field(default=0, repr=False)
    """Zeros of the last tensor that it got."""
    has_negative: bool = field(default=False, repr=False)
    """True if that tensor has numbers below zero."""
    scalars: tuple[float, ...] = field(default=(), repr=False)
    """Its number arguments."""
    is_two_valued: bool = field(default=False, repr=False)
    """The tensor that it got has at most two different values, as an attention mask does."""
    sources: tuple[str | None, ...] = field(default=(), repr=False)
    """Modules that made what it got, the nearest first; None: outside the model."""
    is_certain: bool = field(default=False, repr=False)
    """A loss got probabilities of exactly 0 or 1, of which it cuts the logarithm off."""


class OriginTracer:
    """Finds the origins of one step, and makes their results finite, so that each shows by itself.

    An operator whose result is not finite is called once more in float32. Each operator waits for the device.
    """

    def __init__(self, replay: Replay) -> None:
        self.origins: list[NonfiniteOrigin] = []
        self.modules: set[str] = set()
        """Names of the modules that called an operator, the model itself as the empty name."""
        functions = FunctionMode(replay.device.type)
        self._tensors = TensorOrigins(replay.model, replay.trainer.optimizers.values(), functions)
        self._lost: dict[TensorOrigin, float] = {}
        """Constants that vanished when they were added to tensors."""
        self._sites = Sites()
        self._found: dict[str, Any] | None = None

    def around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator and look at its result; for `observe`."""
        self._found = None
        if str(func.overloadpacket) in UNWRITTEN:
            return func(*args, **kwargs)
        inputs = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
        had_inf, had_nan = any(map(_has_inf, inputs)), any(map(_has_nan, inputs))
        is_in_place = schema_of(func).is_mutable
        before = _facts(inputs) if is_in_place else None
        result = func(*args, **kwargs)
        outputs = [one for one in tensors_in(result) if one.is_floating_point()]
        if is_in_place:
            outputs += [one for one in inputs if all(one is not other for other in outputs)]
        makes_nan = not had_nan and any(map(_has_nan, outputs))
        makes_inf = not had_inf and any(map(_has_inf, outputs))
        if makes_nan or makes_inf:
            wide = None if is_in_place else _in_float32(func, args, kwargs)
            is_range = wide is not None and all(bool(one.isfinite().all()) for one in wide)
            name = func.overloadpacket.__name__
            if is_range or makes_nan or name not in _FILLS:
                self._found = (before or _facts(inputs)) | {
                    "is_range": is_range,
                    "has_nan": makes_nan,
                    "float32_max_abs": None if wide is None else _max_abs(wide),
                    "scalars": _scalars(args),
                    "eps": self._lost_on_the_way(inputs[-1:]),
                    "sources": self._sources(inputs),
                    "reduced_elements": _reduced(inputs, outputs),
                }
                for one in outputs:
                    if _has_inf(one) or _has_nan(one):  # autograd takes the version of all others for a change of them
                        with torch.autograd.grad_mode._unsafe_preserve_version_counter(one):
                            one.nan_to_num_()
        elif func.overloadpacket.__name__ in _OF_PROBABILITIES and bool(((inputs[0] == 0) | (inputs[0] == 1)).any()):
            self._found = _facts(inputs) | {"is_certain": True, "sources": self._sources(inputs)}
        return result

    def on_call(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Note the call whose result has just been looked at; for `observe`."""
        site = self._sites.passed(call)
        if call.module is not None:
            self.modules.add(call.module)
        if call.phase == "forward":
            self._tensors.note(call, args, kwargs, result)
            outputs = [*tensors_in(result)]
            if (lost := _lost_scalar(args, outputs)) is not None:
                self._lost[self._tensors.of(outputs[0])] = lost
        if self._found is not None:
            origin = NonfiniteOrigin(
                call=call,
                site=site,
                phase=call.phase,
                **self._found,
            )
            self.origins.append(origin)
            self._found = None

    def _sources(self, tensors: Sequence[Tensor]) -> tuple[str | None, ...]:
        """Find the modules that made tensors, the nearest first."""
        found: dict[str | None, None] = {}
        seen: set[TensorOrigin] = set()
        waiting = [self._tensors.of(one) for one in tensors]
        while waiting and len(seen) < _MOST_SOURCES:
            made = waiting.pop(0).made
            if made not in seen and made.call is not None:
                seen.add(made)
                found[made.call.module] = None
                waiting += made.sources
        return tuple(found)

    def _lost_on_the_way(self, tensors: Sequence[Tensor]) -> float | None:
        """Find a constant that vanished on the way to a tensor."""
        level = [self._tensors.of(one) for one in tensors]
        for _ in range(_MOST_STEPS_BACK):
            if (lost := next((self._lost[one] for one in level if one in self._lost), None)) is not None:
                return lost
            level = [source for one in level for source in one.sources[:1]]
        return None


def trace_origins(replay: Replay, num_before: int) -> OriginTracer:
    """Find the origins of inf and NaN in a step of a replay, which is not to be used any more, after some others."""
    for _ in range(num_before):
        replay.step()
    tracer = OriginTracer(replay)
    with observe(replay.model, tracer.on_call, around=tracer.around):
        replay.step()
    return tracer


def _has_inf(tensor: Tensor) -> bool:
    return bool(tensor.isinf().any())


def _has_nan(tensor: Tensor) -> bool:
    return bool(tensor.isnan().any())


def _facts(inputs: Sequence[Tensor]) -> dict[str, Any]:
    filled = [one for one in inputs if one.numel()]
    if not filled:
        return {"input_max_abs": 0.0}
    signed = filled[-1].detach().float()
    return {
        "input_max_abs": max(_max_abs(filled) or 0.0, 0.0),
        "divisor_zeros": int((signed == 0).sum()),
        "has_negative": bool((signed < 0).any()),
        "is_two_valued": filled[0].numel() > 2 and torch.unique(filled[0]).numel() <= 2,
    }


def _max_abs(tensors: Sequence[Tensor]) -> float | None:
    found = [float(finite.abs().max()) for one in tensors if (finite := one[one.isfinite()]).numel()]
    return max(found) if found else None


def _scalars(args: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(one) for one in args if isinstance(one, int | float) and not isinstance(one, bool))


def _lost_scalar(args: Sequence[Any], outputs: Sequence[Tensor]) -> float | None:
    """The first number argument that is not zero but rounds to zero in the dtype of the result."""
    for output in outputs[:1]:
        known = FORMATS.get(dtype_name(output.dtype))
        for scalar in _scalars(args):
            if known is not None and 0 < abs(scalar) <= 2.0 ** (known.min_exponent - 1):
                return scalar
    return None


def _reduced(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Elements that one of the result was made of by an operator of one tensor; 1 for any other."""
    if len(inputs) != 1 or not outputs or not outputs[0].numel():
        return 1
    return max(1, inputs[0].numel() // outputs[0].numel())


def _in_float32(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor] | None:
    """Call an operator with its inputs in float32; return its floating-point results, None where it refuses."""
    asked = kwargs.get("dtype")
    if asked is not None and asked.is_floating_point:
        kwargs = kwargs | {"dtype": torch.float32}
    args, kwargs = map_tensors((args, kwargs), lambda one: one.float() if one.is_floating_point() else one)
    try:
        result = func(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return [one for one in tensors_in(result) if one.is_floating_point()]
