"""The calls of a step that turn finite numbers into inf or NaN, and the way of such a value back to its call."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.numeric_formats import FORMATS, dtype_name
from ampsweep.observe.calls import UNWRITTEN, Call, Phase, Site, Sites, observe
from ampsweep.observe.functions import FunctionMode
from ampsweep.observe.operators import OpOverload, schema_of

if TYPE_CHECKING:
    from ampsweep.doctor.replay import Replay

_FILLS: Final = ("fill", "fill_", "full", "full_like", "masked_fill", "masked_fill_", "where", "scalar_tensor")
"""Operators that write given values: their inf is intended, unless float32 would have kept it finite."""
_MOST_AGAIN: Final = 12  # calls that are computed again in float32 at most, to tell what rounding has done
_SEEDED: Final = torch.Tag.nondeterministic_seeded


@dataclass(frozen=True, kw_only=True, eq=False)
class NonfiniteOrigin:
    """A call that turned finite inputs into inf or NaN."""

    phase: Phase
    input_max_abs: float | None = None  # the largest magnitude among its inputs; None if it may have overwritten them
    has_nan: bool = False
    float32_max_abs: float | None = None  # the largest finite magnitude of the result in float32
    eps: float | None = None  # a constant in the calls before it that is zero in their dtype
    reduced_elements: int = 1  # input elements per result element
    call: Call = field(repr=False)
    site: Site = field(repr=False)
    again: tuple[Call, ...] = field(default=(), repr=False)
    """The fewest calls up to this one that keep the result finite in float32; empty if too many would be needed."""
    has_zeros: bool = field(default=False, repr=False)  # in its last input tensor
    has_negative: bool = field(default=False, repr=False)  # that tensor has negative numbers
    scalars: tuple[float, ...] = field(default=(), repr=False)  # its number arguments
    is_two_valued: bool = field(default=False, repr=False)  # its first tensor is like a mask

    @property
    def is_range(self) -> bool:
        """True if float32 keeps the result finite."""
        return bool(self.again)


@dataclass(frozen=True)
class NonfiniteTensor:
    """A tensor with inf or NaN, and the call that made it of finite ones, or in which it arrived."""

    has_nan: bool
    made: NonfiniteOrigin | None = None  # None: it inherited them, or has them from elsewhere
    is_written: bool = False  # its infinities may be intended, as those of a mask
    arrived_in: Call | None = None  # nothing that was observed made it; the call that got it


_Recent = tuple[Call, Any, Sequence[Any], dict[str, Any], list[Tensor]]
"""A call, its operator, arguments and results."""


class NonfiniteOrigins:
    """Finds the origins of a step in its calls. Nothing is changed, unless it `heals`: then inf and NaN in results are
    replaced, so that each origin shows by itself."""

    def __init__(self, tensors: TensorOrigins, *, heals: bool = False) -> None:
        self.found: list[NonfiniteOrigin] = []
        self.modules: dict[str, None] = {}  # those that called an operator in forward, the latest last
        self._tensors, self._heals, self._sites = tensors, heals, Sites()
        self._bad: dict[TensorOrigin, NonfiniteTensor] = {}
        self._recent: deque[_Recent] = deque(maxlen=_MOST_AGAIN)

    def note(
        self, call: Call, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> NonfiniteOrigin | None:
        """Note a call of an operator, and return what is found of it if it is an origin."""
        self._tensors.note(call, args, kwargs, result)
        site, inputs, outputs = self._sites.passed(call), floats_in((args, kwargs)), floats_in(result)
        if call.module is not None and call.phase == "forward":
            self.modules.pop(call.module, None)
            self.modules[call.module] = None
        is_overwriting = not isinstance(func, OpOverload) or schema_of(func).is_mutable
        is_repeatable = not is_overwriting and _SEEDED not in func.tags
        if call.phase == "backward" or not is_repeatable:
            self._recent.clear()
        if outputs and is_repeatable:
            self._recent.append((call, func, args, kwargs, outputs))
        if self._heals and is_overwriting:  # some return nothing
            outputs += [tensor for tensor in inputs if all(tensor is not other for other in outputs)]
        if call.operator in UNWRITTEN or all_finite(outputs):
            return None
        read = [] if is_overwriting else inputs
        before, has_nan = self._before(call, inputs, read), _has_nan(outputs)
        bad = NonfiniteTensor(has_nan, is_written=all(each.is_written for each in before))
        if not before or (has_nan and not any(each.has_nan for each in before)):
            is_fill = call.operator.removeprefix("aten.") in _FILLS
            facts = _facts_of(read) | self._in_float32(1 if is_fill else _MOST_AGAIN)
            facts |= {"scalars": _scalars_in(args), "reduced_elements": _reduced(inputs, outputs)}
            made = NonfiniteOrigin(phase=call.phase, call=call, site=site, has_nan=has_nan, **facts)
            bad = NonfiniteTensor(has_nan, made, is_written=is_fill and not has_nan and not made.is_range)
        found = None if bad.is_written else bad.made
        self.found += [found] if found is not None else []
        for tensor in (tensor for tensor in outputs if not all_finite([tensor])):
            if found is not None and self._heals:
                # For autograd a tensor with a new version has been changed by the user.
                with torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor):
                    tensor.nan_to_num_()
            elif bad.made is not None or self._tensors.of(tensor) not in self._bad:
                self._bad[self._tensors.of(tensor)] = bad
        return found

    def source_of(self, tensor: Tensor) -> tuple[TensorOrigin, NonfiniteTensor] | None:
        """Follow inf or NaN in a tensor back to where it began; an infinity that the code wrote by intent counts only
        where it is all there is (a mask's -inf is no fault, the NaN of its softmax is)."""
        origin, seen = self._tensors.of(tensor), set[TensorOrigin]()
        while (own := self._bad.get(origin)) is not None:
            seen.add(origin)
            sources = [source for source in origin.sources if source in self._bad and source not in seen]
            with_nan = [source for source in sources if self._bad[source].has_nan]
            is_made_here = own.made is not None and own.has_nan and all(self._bad[s].is_written for s in sources)
            if not with_nan and (is_made_here or not sources):
                return origin, own
            origin = (with_nan or sources)[0]
        return None

    def _before(self, call: Call, inputs: Sequence[Tensor], read: Sequence[Tensor]) -> list[NonfiniteTensor]:
        """The inputs with inf or NaN: of those that can be read by their values, else as far as is known."""
        for tensor in read:
            origin = self._tensors.of(tensor)
            if all_finite([tensor]):
                self._bad.pop(origin, None)
            elif origin not in self._bad:
                has_nan = _has_nan([tensor])
                self._bad[origin] = NonfiniteTensor(has_nan, is_written=not has_nan, arrived_in=call)
        return [self._bad[origin] for tensor in inputs if (origin := self._tensors.of(tensor)) in self._bad]

    def _in_float32(self, most: int) -> dict[str, Any]:
        """What the latest calls show in float32: the fewest in which it keeps the last result finite, or the last."""
        calls, facts = [*self._recent], dict[str, Any]()
        for number in range(1, min(most, len(calls)) + 1):
            again = calls[-number:]
            if (wide := _in_float32(again)) is None:
                break
            if all_finite(wide):
                eps = next((lost for *_, args, _, own in again if (lost := _lost_scalar(args, own))), None)
                return {"again": tuple(call for call, *_ in again), "float32_max_abs": _max_abs(wide), "eps": eps}
            facts = facts or {"float32_max_abs": _max_abs(wide)}
        return facts


def trace_origins(replay: "Replay", num_before: int) -> NonfiniteOrigins:
    """Find the origins of inf and NaN in the step after `num_before` others; the replay is spoiled by that."""
    for _ in range(num_before):
        replay.step()
    functions = FunctionMode(replay.device.type)
    origins = NonfiniteOrigins(TensorOrigins(replay.model, replay.trainer.optimizers.values(), functions), heals=True)

    def on_call(call: Call, *given: Any) -> None:
        origins.note(call, observer.operator, *given)

    with observe(replay.model, on_call) as observer:
        replay.step()
    return origins


def floats_in(values: Any) -> list[Tensor]:
    """The tensors whose numbers can be checked; those of eight bits cannot."""
    given = (tensor for tensor in tensors_in(values) if tensor.is_floating_point())
    return [tensor for tensor in given if tensor.layout is torch.strided and tensor.itemsize > 1]


def all_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _has_nan(tensors: Sequence[Tensor]) -> bool:
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def _facts_of(inputs: Sequence[Tensor]) -> dict[str, Any]:
    filled = [tensor for tensor in inputs if tensor.numel()]
    if not filled:
        return {}
    signed = filled[-1].detach().float()
    return {
        "input_max_abs": _max_abs(filled),
        "has_zeros": bool((signed == 0).any()),
        "has_negative": bool((signed < 0).any()),
        "is_two_valued": filled[0].numel() > 2 and torch.unique(filled[0]).numel() <= 2,
    }


def _max_abs(tensors: Sequence[Tensor]) -> float | None:
    found = [float(finite.abs().max()) for tensor in tensors if (finite := tensor[tensor.isfinite()]).numel()]
    return max(found) if found else None


def _scalars_in(args: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(arg) for arg in args if isinstance(arg, int | float) and not isinstance(arg, bool))


def _lost_scalar(args: Sequence[Any], outputs: Sequence[Tensor]) -> float | None:
    """The first number argument that is not zero but rounds to zero in the dtype of the result."""
    known = FORMATS.get(dtype_name(outputs[0].dtype))
    smallest = 0.0 if known is None else 2.0 ** (known.min_exponent - 1)
    return next((scalar for scalar in _scalars_in(args) if 0 < abs(scalar) <= smallest), None)


def _reduced(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    if len(inputs) != 1 or not outputs or not outputs[0].numel():
        return 1
    return max(1, inputs[0].numel() // outputs[0].numel())


def _in_float32(calls: Sequence[_Recent]) -> list[Tensor] | None:
    """The results of the last call, if each gets what those before it return in float32; None if one of them cannot."""
    wide: dict[int, Tensor] = {}
    results: list[Tensor] | None = None
    for _, func, args, kwargs, outputs in calls:
        if (asked := kwargs.get("dtype")) is not None and asked.is_floating_point:
            kwargs = kwargs | {"dtype": torch.float32}
        given = map_tensors(
            (args, kwargs), lambda own: wide.get(id(own), own.float() if own.is_floating_point() else own)
        )
        try:
            results = floats_in(func(*given[0], **given[1]))
        except (RuntimeError, TypeError, NotImplementedError):
            return None
        wide.update(zip(map(id, outputs), results, strict=False))
    return results
