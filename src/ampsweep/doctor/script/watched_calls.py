"""The calls of a running training, of which nothing is changed: errors, the first inf or NaN, what precision did."""

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from traceback import walk_stack
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.float32_edits import edit_of_running
from ampsweep.doctor.loss import nonfinite_origins as origins
from ampsweep.doctor.loss.findings import kind_of
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin
from ampsweep.doctor.script.scaler_edits import Stack
from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.doctor.types.failing_call import CallWatch
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.calls import UNWRITTEN, Call
from ampsweep.observe.flops import formulas
from ampsweep.observe.operators import OpOverload, TorchDispatchMode, innermost_mode, schema_of, storage_id
from ampsweep.text import one_line
from ampsweep.user_code import CodeLine, place_of_caller

_MAX_CALLS: Final = 50_000  # calls after which the memory of earlier ones is given up, as in a long evaluation
_MOST_AGAIN: Final = 12  # operators that are computed again in float32 at most, to tell what rounding has done
_WRAPPERS: Final = r"^((module|_orig_mod|_forward_module|_original_module)\.)+"
_SEEDED: Final = torch.Tag.nondeterministic_seeded


@dataclass(frozen=True)
class NonfiniteTensor:
    """A tensor with inf or NaN, and the call that made it of finite ones, or in which it arrived."""

    has_nan: bool
    made: NonfiniteOrigin | None = None  # None: it inherited them, or has them from elsewhere
    edit: CodeEdit | None = None  # of the code that made it, in float32
    is_written: bool = False  # its infinities may be intended, as those of a mask
    arrived_in: Call | None = None  # nothing that was observed made it; the call that got it


_Recent = tuple[Call, Any, Sequence[Any], dict[str, Any], list[Tensor]]
"""A call, its operator, arguments and results."""


class Product(NamedTuple):
    """Matrix products or convolutions of a line in forward."""

    device: str  # its type
    dtype: torch.dtype
    module: str | None
    place: str | None
    is_autocast: bool  # autocast was on


class WatchedCalls(CallWatch):
    """Watches the calls of this thread, and of autograd for it, from `enter` to `leave`; all of it is only read."""

    def __init__(self) -> None:
        super().__init__("cpu", nn.Module())
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._formulas, self._entered = formulas(), ExitStack()
        self._mode: TorchDispatchMode | None = None
        self._is_paused, self.failure = False, ""  # what has failed in observing
        self._is_found = False  # the model is known
        self.products: Counter[Product] = Counter()  # their operations
        self.begin_step()

    @property
    def is_on(self) -> bool:
        return self._mode is not None

    def enter(self) -> None:
        with ExitStack() as entered:
            entered.enter_context(self.watching())
            entered.callback(register_module_forward_pre_hook(partial(self.guard, self._name)).remove)
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
        self._recent: deque[_Recent] = deque(maxlen=_MOST_AGAIN)
        self.first_in_backward: NonfiniteOrigin | None = None
        self.reads: Counter[CodeLine | None] = Counter()  # of single numbers, by the line that reads them
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        """Forget what was done with those of earlier backward passes."""
        self._gradients: set[int] | None = None  # their storages
        self._of_gradients: set[TensorOrigin] = set()  # what was computed from them
        self.gradients_use: Stack = ()  # where they are first used
        self.limit: tuple[CodeLine | None, float] | None = None  # where their size is first limited, in which norm
        self._is_size_read = self._is_unscaled = False

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
        self.guard(super().note_error, error, func, args, kwargs)

    def guard(self, note: Callable[..., None], *args: Any) -> None:
        """Let the training go on whatever fails in observing it, and observe no more."""
        try:
            with self.paused():
                note(*args)
        except Exception as error:  # noqa: BLE001 - the training is worth more than what is seen of it
            self.failure = one_line(error)

    def _name(self, module: nn.Module, _: object) -> None:
        """Name a module that no named module contains: the model is the first with parameters."""
        if module in self._names:
            return
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
            self.guard(self._note, *call)

    def _note(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self.origins.note(call, args, kwargs, result)
        func, outputs, inputs = self._operator_called, _floats((result,)), _floats((args, kwargs))
        if call.phase == "backward":
            self._recent.clear()
            self._forget_gradients()
        elif call.phase == "update":
            self._note_update(call, args, inputs, result)
        else:
            self._count(call, args, kwargs, result, inputs)
            if not isinstance(func, OpOverload) or schema_of(func).is_mutable or _SEEDED in func.tags:
                self._recent.clear()
            elif outputs:
                self._recent.append((call, func, args, kwargs, outputs))
        if call.operator == "aten._local_scalar_dense" and (args[0].requires_grad or not args[0].is_cpu):
            self.reads[place_of_caller()] += 1
        if call.operator not in UNWRITTEN and not origins.all_finite(outputs):
            self._note_nonfinite(call, args, kwargs, inputs, outputs)
        if call.index % _MAX_CALLS == _MAX_CALLS - 1:
            self.begin_step()

    def _count(self, call: Call, args: Any, kwargs: Any, result: Any, inputs: list[Tensor]) -> None:
        formula = self._formulas.get(getattr(self._operator_called, "overloadpacket", None))
        if formula is not None and inputs and torch.is_grad_enabled():
            kind, is_autocast = (inputs[0].device.type, inputs[0].dtype), self.running and self.running.is_autocast
            product = Product(*kind, call.module, call.place, bool(is_autocast))
            self.products[product] += formula(*args, **kwargs, out_val=result)

    def _note_update(self, call: Call, args: Sequence[Any], inputs: list[Tensor], result: Any) -> None:
        """Note the first use of gradients after backward, and the first change of them that depends on their size."""
        if self._gradients is None:
            held = [p.grad for module in self._names for p in module.parameters(recurse=False) if p.grad is not None]
            self._gradients = {storage_id(grad.untyped_storage()) for grad in _floats(held)}
        self._is_unscaled |= "unscale" in call.operator
        used = [tensor for tensor in inputs if storage_id(tensor.untyped_storage()) in self._gradients]
        derived = [tensor for tensor in inputs if self.origins.of(tensor) in self._of_gradients]
        if self._is_unscaled or not (used or derived):
            return
        if used:
            self.gradients_use = self.gradients_use or [(frame.f_code.co_filename, n) for frame, n in walk_stack(None)]
        name = call.operator.removeprefix("aten._foreach_").removeprefix("aten.").partition("_")[0]
        is_changing = any(bool((tensor != 1).any()) for tensor in derived)
        is_written = schema_of(self._operator_called).is_mutable and used and next(tensors_in(args)) is used[0]
        if not is_written:
            self._of_gradients |= {self.origins.of(tensor) for tensor in tensors_in(result)}
            self._is_size_read |= call.operator == "aten._local_scalar_dense"
        elif name == "clamp" or (name in ("mul", "div") and (is_changing or self._is_size_read)):
            self.limit = self.limit or (place_of_caller(), math.inf if name == "clamp" else 2)

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
            is_fill = call.operator.removeprefix("aten.") in origins.FILLS
            again, more = ([], {}) if is_fill else self._again_in_float32()
            eps = next((lost for *_, given, _, own in again if (lost := origins.lost_scalar(given, own))), None)
            site = (call.phase, call.module, call.place, call.operator, 0)
            made = NonfiniteOrigin(phase=call.phase, call=call, site=site, has_nan=has_nan, eps=eps, **(facts | more))
            edit = self._edit(again, made) if made.is_range and call.phase == "forward" else None
            bad = NonfiniteTensor(has_nan, made, edit, is_written=is_fill and not made.is_range)
            if call.phase == "backward" and not is_fill:
                self.first_in_backward = self.first_in_backward or made
        for tensor in outputs:
            origin = self.origins.of(tensor)
            if not origins.all_finite([tensor]) and (bad.made is not None or origin not in self._bad):
                self._bad[origin] = bad

    def _again_in_float32(self) -> tuple[list[_Recent], dict[str, Any]]:
        """The fewest of the latest calls in which float32 keeps the last result finite, and what that shows."""
        for number in range(len(self._recent))[::-1]:
            again = [*self._recent][number:]
            if (wide := _in_float32(again)) is None:
                break
            if origins.all_finite(wide):
                return again, {"is_range": True, "float32_max_abs": origins.max_abs(wide)}
        return [], {}

    def _edit(self, again: list[_Recent], made: NonfiniteOrigin) -> CodeEdit | None:
        is_autocast = self.running is not None and self.running.is_autocast
        is_cast = is_autocast and any(func.overloadpacket in self._formulas for _, func, *_ in again)
        device = self._device_type if is_cast else None
        first, last, kind = again[0][0].place if again else None, made.call.place, kind_of(made)
        return edit_of_running(first, last, kind.edits, autocast=device, casts_back=not is_autocast)

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


def _in_float32(calls: Sequence[_Recent]) -> list[Tensor] | None:
    """The results of the last call, if each gets what those before it return in float32; None if one of them cannot."""
    wide: dict[int, Tensor] = {}
    results: list[Tensor] | None = None
    for _, func, args, kwargs, outputs in calls:
        args, kwargs = map_tensors((args, kwargs), lambda tensor: wide.get(id(tensor), tensor))
        if (results := origins.in_float32(func, args, kwargs)) is None:
            return None
        wide.update((id(own), result) for own, result in zip(outputs, results, strict=False))
    return results


def _floats(values: Any) -> list[Tensor]:
    return [tensor for tensor in origins.floats_in(values) if tensor.layout is torch.strided and tensor.itemsize > 1]
