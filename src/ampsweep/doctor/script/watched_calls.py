"""The calls of a running training, of which nothing is changed: errors, the first inf or NaN, products in float32."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ampsweep.doctor.loss import nonfinite_origins as origins
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin
from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.doctor.types.failing_call import CallWatch
from ampsweep.observe.calls import UNWRITTEN, Call
from ampsweep.observe.flops import formulas
from ampsweep.observe.operators import TorchDispatchMode, innermost_mode, schema_of
from ampsweep.text import one_line

_MAX_CALLS: Final = 50_000  # calls after which the memory of earlier ones is given up, as in a long evaluation
_WRAPPERS: Final = r"^((module|_orig_mod|_forward_module|_original_module)\.)+"


@dataclass(frozen=True)
class NonfiniteTensor:
    """A tensor with inf or NaN, and the call that made it of finite ones, or in which it arrived."""

    has_nan: bool
    made: NonfiniteOrigin | None = None  # None: it inherited them, or has them from elsewhere
    is_written: bool = False  # its infinities may be intended, as those of a mask
    arrived_in: Call | None = None  # nothing that was observed made it; the call that got it


WideProduct = tuple[str | None, str | None, bool]
"""Module and place of matmuls or convolutions in float32 or float64 in forward, and whether autocast was on."""


class WatchedCalls(CallWatch):
    """Watches the calls of this thread, and of autograd for it, from `enter` to `leave`; all of it is only read."""

    def __init__(self) -> None:
        super().__init__("cpu", nn.Module())
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._formulas, self._entered = formulas(), ExitStack()
        self._mode: TorchDispatchMode | None = None
        self._is_paused, self.failure = False, ""  # what has failed in observing
        self._is_found = False  # the model is known
        self.wide_products: Counter[WideProduct] = Counter()  # operations
        self.begin_step()

    @property
    def is_on(self) -> bool:
        return self._mode is not None

    def enter(self) -> None:
        with ExitStack() as entered:
            entered.enter_context(self.watching())
            entered.callback(register_module_forward_pre_hook(self._module_begins).remove)
            self._observer.names, self._mode = self._names, innermost_mode()
            self._entered = entered.pop_all()

    def leave(self) -> None:
        """Stay if the script has entered a mode of its own meanwhile."""
        if self._mode is not None and innermost_mode() is self._mode and self.is_innermost():
            self._mode = None
            self._entered.close()

    def begin_step(self) -> None:
        """Forget all but the names of modules; a step's inf and NaN are explained within it."""
        self._failures.clear()
        self._below = None
        self.origins = TensorOrigins(self._model, (), self)
        self._bad: dict[TensorOrigin, NonfiniteTensor] = {}
        self._lost: dict[TensorOrigin, float] = {}
        self.first_in_backward: NonfiniteOrigin | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is computed inside, which is not the training's."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def called(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        is_seen = not (self._is_paused or self.failure)
        return super().called(func, args, kwargs) if is_seen else func(*args, **kwargs)

    def around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._operator_called = func
        return super().around(func, args, kwargs)

    def note_error(self, error: Exception, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._guard(super().note_error, error, func, args, kwargs)

    def _guard(self, note: Callable[..., None], *args: Any) -> None:
        """Let the training go on whatever fails in observing it, and observe no more."""
        try:
            with self.paused():
                note(*args)
        except Exception as error:  # noqa: BLE001 - the training is worth more than what is seen of it
            self.failure = one_line(error)

    def _module_begins(self, module: nn.Module, _: object) -> None:
        if module not in self._names and not self.failure:
            self._guard(self._name, module)

    def _name(self, module: nn.Module) -> None:
        """Name a module that no named module contains: the model is the first with parameters."""
        first = None if self._is_found else next(module.parameters(), None)
        if first is not None:
            self._is_found, self._model, self._device_type = True, module, first.device.type
            self.origins = TensorOrigins(module, (), self)
        for name, part in module.named_modules():
            inner = re.sub(_WRAPPERS, "", f"{name}.").rstrip(".")
            own = inner if first is not None else f"{type(module).__name__}.{inner}".rstrip(".")
            self._names.setdefault(part, own)

    def note_call(self, *call: Any) -> None:
        has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        is_capturing = has_cuda and torch.cuda.is_current_stream_capturing()  # nothing can be read
        if not (self._is_paused or self.failure or is_capturing):
            self._guard(self._note, *call)

    def _note(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self.origins.note(call, args, kwargs, result)
        outputs, inputs = _floats((result,)), _floats((args, kwargs))
        if call.phase == "forward":
            self._count(call, args, kwargs, result, inputs)
            if outputs and (lost := origins.lost_scalar(args, outputs)) is not None:
                self._lost[self.origins.of(outputs[0])] = lost
        if call.operator not in UNWRITTEN and not origins.all_finite(outputs):
            self._note_nonfinite(call, args, kwargs, inputs, outputs)
        if call.index % _MAX_CALLS == _MAX_CALLS - 1:
            self.begin_step()

    def _count(self, call: Call, args: Any, kwargs: Any, result: Any, inputs: list[Tensor]) -> None:
        formula = self._formulas.get(getattr(self._operator_called, "overloadpacket", None))
        if formula is not None and inputs and inputs[0].itemsize >= 4 and torch.is_grad_enabled():
            product = call.module, call.place, self.running is not None and self.running.is_autocast
            self.wide_products[product] += formula(*args, **kwargs, out_val=result)

    def _note_nonfinite(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        read = [] if schema_of(self._operator_called).is_mutable else inputs  # others may be overwritten by now
        for tensor in read:
            origin = self.origins.of(tensor)
            if origins.all_finite([tensor]):
                self._bad.pop(origin, None)
            elif origin not in self._bad:
                has_nan = bool(tensor.isnan().any())
                self._bad[origin] = NonfiniteTensor(has_nan, is_written=not has_nan, arrived_in=call)
        before = [self._bad[origin] for tensor in inputs if (origin := self.origins.of(tensor)) in self._bad]
        has_nan = any(bool(tensor.isnan().any()) for tensor in outputs)
        bad = NonfiniteTensor(has_nan, is_written=all(each.is_written for each in before))
        if not before or (has_nan and not any(each.has_nan for each in before)):
            facts = origins.facts_of(read) | origins.facts_of_result(self._operator_called, args, kwargs, outputs)
            eps = origins.lost_on_the_way([self.origins.of(tensor) for tensor in inputs[-1:]], self._lost)
            site = (call.phase, call.module, call.place, call.operator, 0)
            made = NonfiniteOrigin(phase=call.phase, call=call, site=site, has_nan=has_nan, eps=eps, **facts)
            is_fill = call.operator.removeprefix("aten.") in origins.FILLS
            bad = NonfiniteTensor(has_nan, made, is_written=is_fill and not made.is_range)
            if call.phase == "backward" and not is_fill:
                self.first_in_backward = self.first_in_backward or made
        for tensor in outputs:
            origin = self.origins.of(tensor)
            if not origins.all_finite([tensor]) and (bad.made is not None or origin not in self._bad):
                self._bad[origin] = bad

    def source_of(self, tensor: Tensor) -> tuple[TensorOrigin, NonfiniteTensor] | None:
        """Follow inf or NaN in a tensor back to where it began; an infinity that the code wrote by intent counts only
        where it is all there is (a mask's -inf is no fault, the NaN of its softmax is)."""
        origin, seen = self.origins.of(tensor), set[TensorOrigin]()
        while (own := self._bad.get(origin)) is not None:
            seen.add(origin)
            sources = [source for source in origin.sources if source in self._bad and source not in seen]
            with_nan = [source for source in sources if self._bad[source].has_nan]
            is_made_here = own.made is not None and own.has_nan and all(self._bad[s].is_written for s in sources)
            if not with_nan and (is_made_here or not sources):
                return origin, own
            origin = (with_nan or sources)[0]
        return None


def _floats(values: Any) -> list[Tensor]:
    return [tensor for tensor in origins.floats_in(values) if tensor.layout is torch.strided and tensor.itemsize > 1]
