"""One training step traced in place: where its memory goes and in which dtypes it computes."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from ampsweep.metrics import MemoryCategory
from ampsweep.tracing.flops import formulas
from ampsweep.tracing.ledger import Ledger, Lives, tensors_in

_DERIVED_FROM_PARAMETERS = {"parameters", "autocast_weights", "activations"}
_PLAIN = (Tensor, FakeTensor)
_DEVICE = torch.ops.prim.device.default
"""How a fake tensor's device is asked for: three times for each operator."""

Scratch = Callable[[Any, Sequence[Any], Any], int]
"""Bytes that an operator's kernel takes for itself, from the operator, its arguments and its result."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """What one step did. Bytes are those of tensors, without an allocator's rounding and kernels' workspaces."""

    peak_bytes: int
    peak: dict[MemoryCategory, int]
    """Bytes by category when the most were alive; they add up to `peak_bytes`."""
    end_of_forward: dict[MemoryCategory, int]
    """Bytes by category before backward; of several backward passes (micro-batches), before that with the most."""
    kept: dict[MemoryCategory, int]
    """Bytes the step made and left behind, by category: new optimizer state, its loss, and whatever leaks."""
    held_bytes: int
    """Bytes of what the step used and did not make."""
    num_operators: int
    """Operators dispatched, views among them."""
    flops: dict[str, int]
    """Operations of matrix multiplications, convolutions and attention by dtype of their operands."""
    recomputed_flops: dict[str, int]
    """Those of them that activation checkpointing did a second time."""
    outputs: dict[str, int]
    """New floating-point tensors that operators returned, by dtype."""

    def __post_init__(self) -> None:
        assert sum(self.peak.values()) == self.peak_bytes

    @property
    def model_flops(self) -> dict[str, int]:
        """Operations that the model asks for by dtype, however often they were done."""
        return {dtype: count - self.recomputed_flops.get(dtype, 0) for dtype, count in self.flops.items()}


class Trace:
    """Holds the result once the step is over."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._result: TracedStep | None = None

    @property
    def moment(self) -> int:
        """Births and deaths of storages so far."""
        return self._ledger.moment

    @property
    def end_of_forward(self) -> int:
        """The moment that `TracedStep.end_of_forward` tells of."""
        return self._ledger.marked_moment

    @property
    def lives(self) -> Lives:
        """Every allocation so far, one by one."""
        return self._ledger.lives()

    @property
    def result(self) -> TracedStep:
        """What the step did; of a step that failed, what it did until then."""
        assert self._result is not None, "the traced step is not over"
        return self._result


@contextmanager
def trace_step(
    model: nn.Module,
    *optimizers: Optimizer,
    held: Iterable[Tensor] = (),
    counted: type[Tensor] = Tensor,
    scratch: Scratch | None = None,
) -> Iterator[Trace]:
    """Trace the optimizer step taken inside; it computes bitwise what it would without.

    Categories on the device of the model's parameters:
    - parameters, gradients, optimizer_state: what they say, from their first byte on;
    - activations: results of parameters while autograd records, also where a checkpoint computes them again;
    - autocast_weights: copies of parameters in another dtype made while autograd records;
    - temporary: everything made while autograd does not record: in backward and in the optimizer;
    - other: buffers, batches and all else.

    What kernels allocate for themselves is not seen. A compiled model runs eagerly while it is traced, and computes
    what the eager model would. The first step of all has an optimizer without state until its end: a later one tells
    more.

    Args:
        held: tensors that are there from the beginning, whether the step uses them or not.
        counted: the class of tensors that are on the device.
        scratch: what is known of kernels' own memory; it is in the trace's lives alone.
    """
    parameters = [*model.parameters()]
    parameters += [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert parameters, "a model without parameters cannot be trained"
    ledger = Ledger(parameters[0].device, counted=counted)
    for tensor in (*held, *model.buffers()):
        ledger.hold(tensor, "other")
    for parameter in parameters:
        ledger.hold(parameter, "parameters")
        _hold_gradient(ledger, parameter)
    _hold_state(ledger, optimizers)
    hold = partial(_hold_gradient, ledger)
    trace, mode = Trace(ledger), _Tracer(ledger, scratch)
    try:
        # Compiled code is invisible to a dispatch mode, and torch.compile gives up for good on what it meets in one.
        with ExitStack() as hooks, torch.compiler.set_stance("force_eager"), mode:
            for parameter in {id(p): p for p in parameters if p.requires_grad}.values():
                handle = parameter.register_post_accumulate_grad_hook(hold)  # type: ignore[no-untyped-call]
                hooks.callback(handle.remove)
            yield trace
    finally:
        _hold_state(ledger, optimizers)
        trace._result = mode.result()
        ledger.close()


@contextmanager
def trace_program(
    device: torch.device, *, counted: type[Tensor] = Tensor, scratch: Scratch | None = None
) -> Iterator[Trace]:
    """Trace whatever is done inside, whose parameters and optimizers are not known beforehand: only sizes count."""
    ledger = Ledger(device, counted=counted)
    trace, mode = Trace(ledger), _Tracer(ledger, scratch)
    try:
        with mode:
            yield trace
    finally:
        trace._result = mode.result()
        ledger.close()


def _hold_gradient(ledger: Ledger, parameter: Tensor) -> None:
    if parameter.grad is not None:
        ledger.hold(parameter.grad, "gradients")


def _hold_state(ledger: Ledger, optimizers: tuple[Optimizer, ...]) -> None:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for tensor in tensors_in(state):
                ledger.hold(tensor, "optimizer_state")


class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator below autograd and autocast, with the tensors it takes and returns."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not public. torch would put a wrapper around each call, to keep what compiles from looking into it; nothing
        is compiled within a trace."""
        return False

    def __init__(self, ledger: Ledger, scratch: Scratch | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._scratch = scratch
        self._formulas = formulas()
        self._phase = ModuleTracker()
        self._in_backward = False
        self._num_operators = 0
        self._flops: Counter[torch.dtype] = Counter()
        self._recomputed_flops: Counter[torch.dtype] = Counter()
        self._outputs: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:
            return args[0].fake_device
        if any(t not in _PLAIN for t in types):
            return NotImplemented  # a tensor subclass takes over: its operators on plain tensors are seen instead
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        for tensor in inputs:
            if self._ledger.find(tensor) is None:
                self._ledger.hold(tensor, "other")
        was_in_backward, self._in_backward = self._in_backward, self._phase.is_bw
        if self._in_backward and not was_in_backward:
            self._ledger.mark()
        result = func(*args, **(kwargs or {}))
        self._num_operators += 1
        operator = getattr(func, "overloadpacket", func)
        formula = self._formulas.get(operator)
        if formula is not None:
            flops = formula(*args, **(kwargs or {}), out_val=result)
            self._flops[inputs[0].dtype] += flops
            if self._in_backward and _is_recomputation():
                self._recomputed_flops[inputs[0].dtype] += flops
        for tensor in tensors_in(result):
            if self._ledger.create(tensor, self._category(operator, inputs, tensor)) and tensor.is_floating_point():
                self._outputs[tensor.dtype] += 1
        if self._scratch is not None and (num_bytes := self._scratch(operator, args, result)):
            self._ledger.scratch(num_bytes)
        return result

    def _category(self, operator: Any, inputs: list[Tensor], output: Tensor) -> MemoryCategory:
        if not torch.is_grad_enabled():
            return "temporary"
        sources = {found.category for tensor in inputs if (found := self._ledger.find(tensor))}
        if not sources & _DERIVED_FROM_PARAMETERS:
            return "other"
        is_cast = operator is torch.ops.aten._to_copy and output.dtype != inputs[0].dtype
        return "autocast_weights" if is_cast and sources == {"parameters"} else "activations"

    def result(self) -> TracedStep:
        return TracedStep(
            peak_bytes=self._ledger.peak_bytes,
            peak=self._ledger.at_peak(),
            end_of_forward=self._ledger.at_mark(),
            kept=self._ledger.kept(),
            held_bytes=self._ledger.held_bytes,
            num_operators=self._num_operators,
            flops=_by_name(self._flops),
            recomputed_flops=_by_name(self._recomputed_flops),
            outputs=_by_name(self._outputs),
        )


def _is_recomputation() -> bool:
    """Of an operator in backward: whether torch.utils.checkpoint calls it to have an activation again.

    Autograd's own operators run without recording, and with it (a gradient of a gradient) not from there.
    """
    frame = inspect.currentframe() if torch.is_grad_enabled() else None
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


def _by_name(counts: Counter[torch.dtype]) -> dict[str, int]:
    return {str(dtype).removeprefix("torch."): count for dtype, count in counts.items()}
