"""Trace of a training step, taken in place: its memory by category and its operations by dtype."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim import Optimizer

from ampsweep.memory_categories import MemoryCategory
from ampsweep.nested_tensors import plain_tensors_in, tensors_in, wraps_others
from ampsweep.observe.feeding import StorageCounter
from ampsweep.observe.flops import OperationCensus, Operations
from ampsweep.observe.ledger import Ledger
from ampsweep.observe.operator_work import WorkLog
from ampsweep.observe.operators import FakeTensorMode, is_in_backward

_PARAMETERS: Final = ({"parameters"}, {"communication"})  # whole, or gathered from the shards of the ranks
_DERIVED_FROM_PARAMETERS: Final = {"parameters", "communication", "autocast_weights", "activations"}

Scratch = Callable[[Any, Sequence[Any], Any], int]  # operator, arguments, result -> its kernel's own bytes
_METACLASS: Final[Any] = type(torch.autograd.Function)
"""`apply` is a C function from torch 2.15 on, bound when a module is imported; only its look-ups on its class can be
intercepted. It reads `_backward_cls` while recording is as outside, and calls the others with recording off."""
_INHERITED: Final = (torch.autograd.Function.forward, torch.autograd.Function.setup_context)


@dataclass(kw_only=True)
class TracedStep(Operations):
    """The memory and arithmetic of a step. Bytes are those of tensors, without rounding and kernels' workspaces."""

    peak_bytes: int
    peak: dict[MemoryCategory, int]  # bytes by category at the peak; they add up to `peak_bytes`
    end_of_forward: dict[MemoryCategory, int]
    """Bytes by category before backward; with several backward passes (micro-batches), before the one with the most.
    A pass within a loss, whose gradients do not go to the parameters, belongs to forward."""
    kept: dict[MemoryCategory, int]  # bytes by category allocated and not freed: new optimizer state, its loss, leaks
    held_bytes: int  # bytes of tensors that the step used but did not allocate
    num_operators: int | None  # dispatched operators, including views; None for a compiled step
    is_compiled: bool = False  # it ran compiled, as the training's steps do (see `profile_step`)

    def __post_init__(self) -> None:
        assert sum(self.peak.values()) == self.peak_bytes


@dataclass(eq=False)
class Trace:
    ledger: Ledger  # while the step runs
    result: TracedStep | None = None  # set after the step; for a failed step, the part before the failure
    failure: Exception | None = None  # what failed in tracing, if that was tolerant; there is no result then


class RecordedForward:
    """True while autograd records the result of the current operator, or of the custom function around it. Autograd
    runs the forward of a custom function with recording off and then records the function as a whole."""

    def __init__(self) -> None:
        self._in_function = False
        self._applied: tuple[Any, bool] | None = None  # the custom function being applied; True if it is recorded

    def __bool__(self) -> bool:
        return self._in_function or torch.is_grad_enabled()

    @contextmanager
    def following(self) -> Iterator[None]:
        def look_up(cls: Any, name: str) -> Any:
            found, applied = type.__getattribute__(cls, name), self._applied
            if name == "_backward_cls":
                self._applied = cls, bool(self)
            elif name in ("forward", "setup_context") and applied and applied[0] is cls and found not in _INHERITED:
                is_last = name == "setup_context" or cls.setup_context in _INHERITED
                return self._followed(found, applied[1], None if is_last else applied)
            return found

        with patch.object(_METACLASS, "__getattribute__", look_up):
            yield

    def _followed(self, function: Callable[..., Any], is_recorded: bool, later: tuple[Any, bool] | None) -> Any:
        """Follow a method of the custom function being applied; `later` is the value of `_applied` after it."""

        @functools.wraps(function)
        def followed(*args: Any, **kwargs: Any) -> Any:
            outside, self._in_function = self._in_function, is_recorded
            try:
                return function(*args, **kwargs)
            finally:
                self._in_function, self._applied = outside, later

        return followed


class OperatorTracer(StorageCounter):
    """Enters the tensors of every operator into a ledger and counts operations, below autograd and autocast."""

    def __init__(
        self, ledger: Ledger, scratch: Scratch | None, region: Callable[[], str | None] | None, log: WorkLog | None
    ) -> None:
        super().__init__(ledger)
        self._scratch, self._region, self._log = scratch, region, log
        self.census = OperationCensus()
        self.recorded = RecordedForward()
        self._in_backward = False
        self.num_operators = 0

    def _note(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], result: Any, made: Any
    ) -> None:
        was_in_backward, self._in_backward = self._in_backward, is_in_backward()
        if self._in_backward and not was_in_backward:
            self.ledger.note()
        self.num_operators += 1
        operator = getattr(func, "overloadpacket", func)
        region = None if self._region is None or self._in_backward else self._region()
        dtype = inputs[0].dtype if inputs else None
        self.census.add(
            *(operator, args, kwargs, result, dtype),
            in_backward=self._in_backward,
            records=self._in_backward and bool(self.recorded),
            region=region,
        )
        for tensor in made:
            if self.ledger.create(tensor, self._category(operator, inputs, tensor)) and tensor.is_floating_point():
                self.census.add_output(tensor.dtype, dtype, region)
        if self._scratch is not None and (num_bytes := self._scratch(operator, args, result)):
            self.ledger.scratch(num_bytes)
        # Scalars that an optimizer keeps on the host are no work of the device, and reading them is no wait.
        if self._log is not None and any(map(self.ledger.counts, (*inputs, *tensors_in(result)))):
            self._log.add(
                *(func, args, kwargs, inputs, result), in_backward=self._in_backward, moment=self.ledger.moment
            )

    def _category(self, operator: Any, inputs: list[Tensor], output: Tensor) -> MemoryCategory:
        sources = {found.category for tensor in inputs if (found := self.ledger.find(tensor))}
        is_cast = operator is torch.ops.aten._to_copy and output.dtype != inputs[0].dtype
        if not self.recorded:
            # FSDP accumulates gradients in the dtype that they are reduced in.
            return "gradients" if is_cast and self._in_backward and sources == {"gradients"} else "temporary"
        if not sources & _DERIVED_FROM_PARAMETERS and not (is_cast and inputs[0].is_floating_point()):
            return "other"  # a batch, unless it is autocast's copy
        return "autocast_weights" if is_cast and sources in _PARAMETERS else "activations"


@contextmanager
def trace_step(
    model: nn.Module,
    *optimizers: Optimizer,
    held: Iterable[Tensor] = (),
    data: Iterable[Tensor] = (),
    fake: FakeTensorMode | None = None,
    is_host: bool | None = None,
    scratch: Scratch | None = None,
    region: Callable[[], str | None] | None = None,
    log: WorkLog | None = None,
    is_tolerant: bool = False,
) -> Iterator[Trace]:
    """Trace the optimizer step taken inside; it computes bitwise the same as without a trace.

    Categories on the device of the model's parameters:
    - parameters, gradients, optimizer_state: as named, from their first byte on;
    - activations: results computed from parameters while autograd records, also in a checkpoint's recomputation,
      gradients within a loss that have a graph of their own, and the forward of custom autograd functions;
    - autocast_weights: copies of parameters in another dtype made while autograd records;
    - communication: buckets of gradients (DDP's gradients are views of them), parameters gathered from their shards,
      and other exchanged tensors without another role;
    - temporary: everything allocated while autograd does not record, in backward and in the optimizer;
    - data: on an accelerator, the resident data set;
    - other: buffers, batches and all else.

    On a host, batches that `fed` has read count by their own bytes; other memory that only feeds them does not count.
    Memory that kernels allocate for themselves is not seen. A compiled model runs eagerly while it is traced. In the
    first step the optimizer has no state until its end: trace a later one.

    `held` are tensors that exist from the beginning, even if the step does not use them, and `data` those of a data set
    on an accelerator. For `fake` and `is_host` see `Ledger`. `scratch` gives the bytes of kernels' own memory, which
    appear in the trace's lives only; `region` names the running part of the model, whose work is also counted
    separately; `log` gets the work of every operator. With `is_tolerant`, what fails in tracing fails the trace, not
    the step."""
    parameters = [*model.parameters(), *parameters_of(*optimizers)]
    assert parameters, "a model without parameters cannot be trained"
    is_sharded = any(map(wraps_others, parameters))
    ledger = Ledger(parameters[0].device, fake=fake, is_host=is_host)
    _hold_all(ledger, data, "data")
    _hold_all(ledger, (*held, *model.buffers()), "other")
    del data, held  # the step frees a batch that it drops
    for parameter in parameters:
        _hold_all(ledger, plain_tensors_in(parameter), "parameters")
        _hold_gradient(ledger, parameter)
    _hold_state(ledger, optimizers)
    trace, tracer = Trace(ledger), OperatorTracer(ledger, scratch, region, log)
    tracer.is_tolerant = is_tolerant
    try:
        # Compiled code is invisible to a dispatch mode, and inside one torch.compile gives up on functions for good.
        with ExitStack() as hooks, torch.compiler.set_stance("force_eager"), tracer.recorded.following(), tracer:
            watched = _Watched(ledger, hooks)
            for parameter in parameters:
                watched.add(parameter)
            is_shared = dist.is_available() and dist.is_initialized()
            replaced = _exchange_gradients if is_shared else _hold_gradients
            for optimizer in optimizers:
                hooks.callback(optimizer.register_step_pre_hook(partial(replaced, ledger)).remove)
            if is_sharded:
                hooks.callback(register_module_forward_hook(watched.add_gathered).remove)
            yield trace
    finally:
        _hold_state(ledger, optimizers)
        trace.failure = tracer.failure
        trace.result = _traced(ledger, tracer) if tracer.failure is None else None
        ledger.close()


class _Watched:
    """Parameters whose gradients are noted when backward has accumulated them."""

    def __init__(self, ledger: Ledger, hooks: ExitStack) -> None:
        self._ledger, self._hooks = ledger, hooks
        self._parameters: dict[int, Tensor] = {}

    def add(self, parameter: Tensor) -> None:
        if parameter.requires_grad and id(parameter) not in self._parameters:
            self._parameters[id(parameter)] = parameter
            handle = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            self._hooks.callback(handle.remove)

    def add_gathered(self, module: nn.Module, *_: object) -> None:
        """Add the parameters of a module after its forward; in a sharded module the gathered ones get gradients."""
        for parameter in module.parameters(recurse=False):
            self.add(parameter)

    def _accumulated(self, parameter: Tensor) -> None:
        self._ledger.mark()  # a backward pass that reaches parameters is the training's own
        _hold_gradient(self._ledger, parameter)


def parameters_of(*optimizers: Optimizer) -> Iterator[nn.Parameter]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _hold_all(ledger: Ledger, tensors: Iterable[Tensor], category: MemoryCategory) -> None:
    for tensor in tensors:
        ledger.hold(tensor, category)


def _hold_gradient(ledger: Ledger, parameter: Tensor) -> None:
    if parameter.grad is not None:
        _hold_all(ledger, plain_tensors_in(parameter.grad), "gradients")


def _hold_gradients(ledger: Ledger, optimizer: Optimizer, *_: object) -> None:
    # The optimizer may use other gradients than those that backward has left.
    for parameter in parameters_of(optimizer):
        _hold_gradient(ledger, parameter)


def _exchange_gradients(ledger: Ledger, optimizer: Optimizer, *_: object) -> None:
    # DDP replaces gradients after backward by views of its buckets.
    ledger.exchange(plain_tensors_in([parameter.grad for parameter in parameters_of(optimizer)]))


def _hold_state(ledger: Ledger, optimizers: tuple[Optimizer, ...]) -> None:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            _hold_all(ledger, plain_tensors_in(state), "optimizer_state")


def _traced(ledger: Ledger, operators: OperatorTracer) -> TracedStep:
    lives = ledger.lives()
    peak = lives.peak()
    return TracedStep(
        peak_bytes=peak.num_bytes,
        peak=peak.categories,
        end_of_forward=lives.at(ledger.marked_moment),
        kept=lives.kept(),
        held_bytes=lives.held_bytes,
        num_operators=operators.num_operators,
        **vars(operators.census.counts),
    )
