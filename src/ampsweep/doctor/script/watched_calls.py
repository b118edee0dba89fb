"""The calls of a running training, of which nothing is changed: errors, the first inf or NaN, what precision did."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from traceback import walk_stack
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.float32_edits import edit_of_running
from ampsweep.doctor.loss.findings import kind_of
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin, NonfiniteOrigins, floats_in
from ampsweep.doctor.script.scaler_edits import Stack
from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.doctor.types.failing_call import CallWatch
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import Call
from ampsweep.observe.flops import formulas
from ampsweep.observe.operators import TorchDispatchMode, innermost_mode, schema_of, storage_id
from ampsweep.text import one_line
from ampsweep.user_code import CodeLine, place_of_caller

_MAX_CALLS: Final = 50_000  # calls after which the memory of earlier ones is given up, as in a long evaluation
_WRAPPERS: Final = r"^((module|_orig_mod|_forward_module|_original_module)\.)+"


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
        self._formulas = {str(packet): formula for packet, formula in formulas().items()}
        self._entered = ExitStack()
        self._mode: TorchDispatchMode | None = None
        self._is_paused, self.failure = False, ""  # what has failed in observing
        self._is_found = False  # the model is known
        self.products: Counter[Product] = Counter()  # their operations
        self.begin_step()

    @property
    def is_on(self) -> bool:
        return self._mode is not None

    @property
    def _is_autocast(self) -> bool:
        return self.running is not None and self.running.is_autocast

    @property
    def first_in_backward(self) -> NonfiniteOrigin | None:
        return next((origin for origin in self.nonfinite.found if origin.phase == "backward"), None)

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
        self.nonfinite = NonfiniteOrigins(self.origins)
        self.edits: dict[NonfiniteOrigin | None, CodeEdit | None] = {}  # of the code that made inf or NaN, in float32
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
            self.begin_step()
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
        made = self.nonfinite.note(call, self._observer.operator, args, kwargs, result)
        if made is not None and made.is_range and call.phase == "forward":
            self.edits[made] = self._edit(made)
        if call.phase == "backward":
            self._forget_gradients()
        elif call.phase == "update":
            self._note_update(call, args, floats_in((args, kwargs)), result)
        else:
            self._count(call, args, kwargs, result)
        if call.operator == "aten._local_scalar_dense" and (args[0].requires_grad or not args[0].is_cpu):
            self.reads[place_of_caller()] += 1
        if call.index % _MAX_CALLS == _MAX_CALLS - 1:
            self.begin_step()

    def _count(self, call: Call, args: Any, kwargs: Any, result: Any) -> None:
        formula, inputs = self._formulas.get(call.operator), floats_in((args, kwargs))
        if formula is not None and inputs and torch.is_grad_enabled():
            product = Product(inputs[0].device.type, inputs[0].dtype, call.module, call.place, self._is_autocast)
            self.products[product] += formula(*args, **kwargs, out_val=result)

    def _note_update(self, call: Call, args: Sequence[Any], inputs: list[Tensor], result: Any) -> None:
        """Note the first use of gradients after backward, and the first change of them that depends on their size."""
        if self._gradients is None:
            held = [p.grad for module in self._names for p in module.parameters(recurse=False) if p.grad is not None]
            self._gradients = {storage_id(grad.untyped_storage()) for grad in floats_in(held)}
        self._is_unscaled |= "unscale" in call.operator
        used = [tensor for tensor in inputs if storage_id(tensor.untyped_storage()) in self._gradients]
        derived = [tensor for tensor in inputs if self.origins.of(tensor) in self._of_gradients]
        if self._is_unscaled or not (used or derived):
            return
        if used:
            self.gradients_use = self.gradients_use or [(frame.f_code.co_filename, n) for frame, n in walk_stack(None)]
        name = call.operator.removeprefix("aten._foreach_").removeprefix("aten.").partition("_")[0]
        is_changing = any(bool((tensor != 1).any()) for tensor in derived)
        is_written = schema_of(self._observer.operator).is_mutable and used and next(tensors_in(args)) is used[0]
        if not is_written:
            self._of_gradients |= {self.origins.of(tensor) for tensor in tensors_in(result)}
            self._is_size_read |= call.operator == "aten._local_scalar_dense"
        elif name == "clamp" or (name in ("mul", "div") and (is_changing or self._is_size_read)):
            self.limit = self.limit or (place_of_caller(), math.inf if name == "clamp" else 2)

    def _edit(self, made: NonfiniteOrigin) -> CodeEdit | None:
        """The edit of the running code that computes in float32 what keeps a result finite."""
        is_cast = self._is_autocast and any(call.operator in self._formulas for call in made.again)
        device, kind = self._device_type if is_cast else None, kind_of(made)
        first, last = made.again[0].place, made.call.place
        return edit_of_running(first, last, kind.edits, autocast=device, casts_back=not self._is_autocast)
