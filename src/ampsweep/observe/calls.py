"""The operators that a step calls, each with the module and the line that called it, and the phase of the step."""

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.operators import AroundOperator, OperatorMode, backward_node
from ampsweep.user_code import place_of_caller

Phase = Literal["forward", "backward", "update"]
"""`update`: everything between a backward pass and the next forward pass, such as clipping and the optimizer's step."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of an operator, below autograd and autocast: a cast by autocast is a call of its own."""

    index: int  # number of calls before it in the observed step
    operator: str  # as torch writes it: `aten.addmm`
    phase: Phase
    module: str | None
    """Name of the innermost running module, empty for the model, None outside; in backward that of the forward call."""
    place: str | None  # the line of a model or a task that made the call (see `place_of_caller`)
    inputs: tuple[torch.dtype, ...]  # dtypes of all tensors among the arguments
    outputs: tuple[torch.dtype, ...]
    forward: "Call | None" = None  # in backward, the call whose gradient is computed, if known

    @property
    def is_cast(self) -> bool:
        """True if it copies a tensor to another floating-point dtype."""
        is_of_floats = all(dtype.is_floating_point for dtype in (*self.inputs[:1], *self.outputs))
        return is_of_floats and self.operator == "aten._to_copy" and self.inputs[:1] != self.outputs


UNWRITTEN: Final = frozenset(
    f"aten.{name}"
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
"""Operators whose results hold whatever the memory held."""

Site = tuple[Phase, str | None, str | None, str, int]  # and the number of earlier calls with the same four


class Sites:
    """The sites of a step's calls; they are the same in each replay of the step."""

    def __init__(self) -> None:
        self._num_calls: Counter[tuple[Phase, str | None, str | None, str]] = Counter()

    def site(self, call: Call) -> Site:
        group = (call.phase, call.module, call.place, call.operator)
        return (*group, self._num_calls[group])

    def passed(self, call: Call) -> Site:
        """Count a call that has ended; return its site."""
        site = self.site(call)
        self._num_calls[site[:4]] += 1
        return site


OnCall = Callable[[Call, Sequence[Any], dict[str, Any], Any], None]
"""A function of a call, its arguments, keyword arguments and result. What it computes is not observed."""


class CallObserver:
    """Reports calls of operators; use `observe`. Autograd's sequence numbers match backward calls to forward ones."""

    def __init__(self, model: nn.Module, on_call: OnCall, *, around: AroundOperator | None, places: bool) -> None:
        self.names: MutableMapping[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self._on_call, self._around, self._places = on_call, around, places
        self._running: list[nn.Module] = []
        self._thread = get_ident()
        self._by_sequence: dict[int, Call] = {}
        self._num_calls, self._is_updating = 0, False
        self.operator: Any = None  # the overload of the latest call
        self.begun: Call | None = None  # the running call, without outputs
        self.failed: Call | None = None  # the last call that raised an error, without outputs

    def module_begins(self, module: nn.Module, *_: object) -> None:
        if self._is_in_step:
            self._is_updating = False
            self._running.append(module)

    def module_ends(self, *_: object) -> None:
        if self._running and self._is_in_step:
            self._running.pop()

    @property
    def _is_in_step(self) -> bool:
        """Return False in other threads, unless autograd runs a checkpoint's forward there."""
        return get_ident() == self._thread or backward_node() is not None

    @property
    def module(self) -> str | None:
        """Name of the innermost running module of the model; None outside the model."""
        return next((self.names[module] for module in reversed(self._running) if module in self.names), None)

    @property
    def phase(self) -> Phase:
        if backward_node() is not None and not self._running:
            return "backward"
        return "update" if self._is_updating else "forward"

    @property
    def running(self) -> Call | None:
        """In backward, the forward call whose gradient is being computed, if known."""
        node = backward_node()
        return None if node is None else self._forward_of(node._sequence_nr())

    def _forward_of(self, sequence: int) -> Call | None:
        # The forward of a custom function may begin with a cast by autocast, whose number is the next.
        return self._by_sequence.get(sequence) or self._by_sequence.get(sequence + 1)

    def __call__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        node = backward_node()
        sequence = torch.autograd._get_sequence_nr() - 1 if node is None else node._sequence_nr()  # type: ignore[attr-defined]
        self.begun = begun = self._call(func, args, kwargs, node is not None, sequence)
        self.operator = func
        try:
            result = func(*args, **kwargs) if self._around is None else self._around(func, args, kwargs)
        except Exception:
            self.failed = begun
            raise
        call = replace(begun, outputs=tuple(tensor.dtype for tensor in tensors_in(result)))
        self._num_calls += 1
        if call.phase == "forward":  # the first of a node: calls within a custom function have its number, too
            self._by_sequence.setdefault(sequence, call)
        self._on_call(call, args, kwargs, result)
        return result

    def _call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], in_backward: bool, sequence: int) -> Call:
        phase, forward = self._phase(func, args, in_backward=in_backward), None
        if phase == "backward":
            forward = self._forward_of(sequence)
        module = self.module if forward is None else forward.module
        place = place_of_caller() if self._places and phase == "forward" else None
        return Call(
            index=self._num_calls,
            operator=str(getattr(func, "overloadpacket", func)),
            phase=phase,
            module=module,
            place=place if forward is None else forward.place,
            inputs=tuple(tensor.dtype for tensor in (*tensors_in(args), *tensors_in(kwargs))),
            outputs=(),
            forward=forward,
        )

    def _phase(self, func: Any, args: Sequence[Any], *, in_backward: bool) -> Phase:
        if in_backward and not self._running:
            self._is_updating = True  # after backward, until autograd records again
            return "backward"
        if self._is_updating and torch.is_grad_enabled() and func is not torch.ops.aten.detach.default:
            self._is_updating = not any(tensor.requires_grad for tensor in tensors_in(args))
        return "update" if self._is_updating else "forward"


@contextmanager
def observe(
    model: nn.Module, on_call: OnCall, *, around: AroundOperator | None = None, places: bool = True
) -> Iterator[CallObserver]:
    """Report every operator called inside, in this thread or by autograd for it; compiled models run eagerly meanwhile.
    `around` calls the operator instead, and may return another result. `places` costs tens of microseconds a call."""
    observer = CallObserver(model, on_call, around=around, places=places)
    with ExitStack() as entered:
        entered.enter_context(torch.compiler.set_stance("force_eager"))
        entered.callback(register_module_forward_pre_hook(observer.module_begins).remove)
        entered.callback(register_module_forward_hook(observer.module_ends, always_call=True).remove)
        entered.enter_context(OperatorMode(observer))
        yield observer
