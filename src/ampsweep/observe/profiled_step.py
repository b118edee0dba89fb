"""Profile of one training step, taken in place: what compiled code allocated, and the dtypes that it computed in."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.optim import Optimizer

from ampsweep.memory_categories import MemoryCategory
from ampsweep.nested_tensors import plain_tensors_in
from ampsweep.observe.flops import OperationCensus, Operations, formulas
from ampsweep.observe.host_memory import ProfiledMemory, in_backward, is_measuring, quiet_profiler
from ampsweep.observe.ledger import without_zeros
from ampsweep.observe.operators import schema_of
from ampsweep.observe.step import TracedStep

_TENSORS: Final = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "int": torch.int32,
    "long int": torch.int64,
    "bool": torch.bool,
}
"""The profiler's names of dtypes."""

_NEEDS_RESULT: Final = (torch.ops.aten.convolution,)
"""Operators whose formula needs the shape of their result, which the profiler does not tell."""

_CALLS_OTHERS: Final = (torch.ops.aten.linear, torch.ops.aten.linear_backward)
"""Operators that on most devices call a matrix multiplication, after a cast under autocast."""


class StepProfile:
    """The profile of a step; its result is there once the step is over."""

    result: TracedStep | None = None
    """None if the step failed, was void or had no step of an optimizer, or where a profiler ran already: two would
    disturb each other."""


@contextmanager
def profile_step(
    model: nn.Module,
    *optimizers: Optimizer,
    device: torch.device,
    data: Iterable[Tensor] = (),
    is_void: Callable[[], bool] = lambda: False,
) -> Iterator[StepProfile]:
    """Profile the optimizer step taken inside, compiled or not; it computes bitwise the same as without.

    Bytes are those that torch's allocator gave out for the device, kernels' workspaces included, and those of tensors
    that were there before: parameters, buffers, gradients, optimizer state and resident data. Categories:

    - parameters, gradients, optimizer_state: as named;
    - activations: what forward allocated and backward found, copies of weights in another dtype included: compiled code
      makes no difference between the two;
    - temporary: everything else that the step allocated;
    - communication: what gradients lie in that was there before, such as DDP's buckets;
    - data, other: resident data; buffers and batches.

    Kernels that the compiler writes itself (by default everything elementwise, and sums) are no operators, and their
    arithmetic is not counted. The events of torch's profiler are not documented.

    Args:
        data: a data set on an accelerator.
        is_void: tells after the step that something else ran within it, such as a compiler, which calls operators, too.
    """
    profiled = StepProfile()
    if is_measuring():
        yield profiled
        return
    optimizer_parameters = [p for one in optimizers for group in one.param_groups for p in group["params"]]
    parameters = [*model.parameters(), *optimizer_parameters]
    parts: dict[MemoryCategory, Iterable[Any]] = {
        "data": data,
        "other": model.buffers(),
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer_state": _states(optimizers),
    }
    held: dict[int, tuple[int, MemoryCategory]] = {}
    for category, part in parts.items():
        held |= {address: (num_bytes, category) for address, num_bytes in _storages(part).items()}
    gradients: dict[int, int] = {}

    def note(optimizer: Optimizer, *_: object) -> None:
        """Note the storages of gradients before the optimizer uses them."""
        found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients.update(_storages(found))

    with ExitStack() as hooks:
        for optimizer in optimizers:
            hooks.callback(optimizer.register_step_pre_hook(note).remove)
        with quiet_profiler(), profile(profile_memory=True, record_shapes=True) as recorded:
            yield profiled
    if not gradients or is_void():
        return
    memory = ProfiledMemory(recorded, device)
    memory.place(gradients, _storages(_states(optimizers)))
    for num_bytes, category in held.values():
        memory.hold(num_bytes, category)
    for address, num_bytes in gradients.items():
        if address not in held and address not in memory.addresses:
            memory.hold(num_bytes, "communication")
    lives = memory.lives()
    peak = lives.peak()
    assert recorded.kineto_results is not None
    counts = _census(recorded.kineto_results.events())
    profiled.result = TracedStep(
        peak_bytes=peak.num_bytes,
        peak=without_zeros(peak.categories),
        end_of_forward=without_zeros(memory.at_end_of_forward(lives)),
        kept={},
        held_bytes=lives.held_bytes,
        num_operators=None,
        flops=counts.flops,
        recomputed_flops=_recomputed(counts),
        forward_flops=counts.forward_flops,
        convolution_flops=None,
        is_compiled=True,
    )


_PADDED: Final = 1.02
"""The most that a backward pass of compiled code does of what two for each forward product are: the compiler pads the
sizes of some products and not of others, as a vocabulary of 50,257 to 50,264."""


def _census(events: Sequence[Any]) -> Operations:
    """Count the operations of the outermost of those operators that have a formula."""
    counted, census, is_backward = formulas(), OperationCensus(), in_backward(events)
    found = [(e, operator) for e in events if (operator := _operator(e.name())) in counted]
    found.sort(key=lambda one: (one[0].start_thread_id(), one[0].start_ns(), -one[0].end_ns()))
    thread, over = None, 0
    for place, (event, operator) in enumerate(found):
        if event.start_thread_id() != thread:
            thread, over = event.start_thread_id(), 0
        if event.start_ns() < over or _only_calls(event, operator, found[place + 1 : place + 2]):
            continue
        over = event.end_ns()
        if (arguments := _arguments(event, operator)) is not None:
            result = operator(*arguments) if operator in _NEEDS_RESULT else None
            is_late = is_backward(event.start_ns())
            census.add(
                operator, arguments, {}, result, arguments[0].dtype, in_backward=is_late, records=False, region=None
            )
    return census.counts


def _only_calls(event: Any, operator: Any, following: Sequence[tuple[Any, Any]]) -> bool:
    """Tell whether a call only leads to another counted one: autocast calls the operator again, with other dtypes."""
    for other, called in following:
        if other.start_thread_id() == event.start_thread_id() and other.start_ns() < event.end_ns():
            return called is operator or operator in _CALLS_OTHERS
    return False


def _operator(name: str) -> Any:
    """The operator of an event; None for those that are none of torch's own."""
    namespace, _, called = name.partition("::")
    return getattr(torch.ops.aten, called, None) if namespace == "aten" and called.isidentifier() else None


def _arguments(event: Any, operator: Any) -> list[Any] | None:
    """The positional arguments of a call, with tensors of the same shapes and dtypes on the meta device.

    None where the first one is no tensor of a known dtype. What an `out=` of compiled code adds is left out.
    """
    positional = [one for one in schema_of(operator.default).arguments if not one.kwarg_only]
    given = list(zip(event.shapes(), event.dtypes(), event.concrete_inputs(), strict=False))[: len(positional)]
    if not given or given[0][1] not in _TENSORS:
        return None
    return [
        torch.empty(shape, dtype=_TENSORS[dtype], device="meta") if dtype in _TENSORS else value
        for shape, dtype, value in given
    ]


def _states(optimizers: Iterable[Optimizer]) -> list[Any]:
    return [[*state.values()] for optimizer in optimizers for state in optimizer.state.values()]


def _storages(values: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of the storages of all tensors in nested values."""
    storages = (tensor.untyped_storage() for value in values for tensor in plain_tensors_in(value))
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _recomputed(counts: Operations) -> Counter[str] | None:
    """Operations done a second time; None where backward did an unknown part of them again.

    Without recomputation backward does at most twice what forward does, padding aside: a gradient for each of two
    operands.
    """
    again = counts.recomputed_flops
    assert again is not None
    backward = counts.flops.total() - counts.forward_flops.total() - again.total()
    return None if backward > 2 * _PADDED * counts.forward_flops.total() else again
