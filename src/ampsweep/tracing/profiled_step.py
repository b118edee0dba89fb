"""Profile of one training step, taken in place: what compiled code allocated, and the dtypes that it computed in.

A dispatch mode does not see compiled code. torch's profiler sees its allocations, and the kernels that it calls for
matrix multiplications, convolutions and attention: operators with the shapes and dtypes of their operands. Kernels that
the compiler writes itself (by default everything elementwise, and sums) are no operators, and are not counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.optim import Optimizer

from ampsweep.memory_categories import MemoryCategory
from ampsweep.numeric_formats import dtype_name
from ampsweep.tracing.flops import formulas, recomputations
from ampsweep.tracing.host_memory import delivered_bytes, is_measuring, is_reading, quiet_profiler
from ampsweep.tracing.ledger import Allocation, plain_tensors_in
from ampsweep.tracing.step import TracedStep

_BACKWARD: Final = "autograd::engine::evaluate_function"
"""Begins the names of events of the autograd engine: one a node of the graph."""

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

_Held = dict[int, tuple[int, MemoryCategory]]
"""Address of a storage -> its bytes and their category."""


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

    The events of torch's profiler are not documented.

    Args:
        data: a data set on an accelerator.
        is_void: tells after the step that something else ran within it, such as a compiler, which calls operators, too.
    """
    profiled = StepProfile()
    if is_measuring():
        yield profiled
        return
    held = _held(model, optimizers, data)
    gradients: dict[int, int] = {}
    with ExitStack() as hooks:
        for optimizer in optimizers:
            hooks.callback(optimizer.register_step_pre_hook(_GradientsNoted(gradients)).remove)
        with quiet_profiler(), profile(profile_memory=True, record_shapes=True) as recorded:
            yield profiled
    if not gradients or is_void():
        return
    assert recorded.kineto_results is not None
    timeline = _Timeline(recorded.kineto_results.experimental_event_tree(), device)
    timeline.place(gradients, {address for address, _ in _states(optimizers)})
    held |= {
        address: (num_bytes, "communication")
        for address, num_bytes in gradients.items()
        if address not in held and address not in timeline.addresses
    }
    census = _census(recorded.kineto_results.events())
    profiled.result = _result(timeline, held, census)


class _GradientsNoted:
    """Notes the storages of gradients before an optimizer uses them: a hook of an optimizer's step."""

    def __init__(self, gradients: dict[int, int]) -> None:
        self._gradients = gradients

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._gradients.update(_storages(found))


_Change = tuple[int, Literal["engine", "engine over", "memory", "reading", "delivery"], int, int]
"""A moment in nanoseconds, its kind, and two numbers: address and bytes of memory; bytes of a batch."""


class _Timeline:
    """The allocations of a step and its backward passes, in the order of time; moments are nanoseconds."""

    def __init__(self, roots: Sequence[Any], device: torch.device) -> None:
        self._backwards: list[tuple[int, int]] = []
        self.allocations: list[Allocation] = []
        self._alive: dict[int, Allocation] = {}
        self._by_address: dict[int, list[Allocation]] = {}
        batch: Allocation | None = None
        read: dict[int, Allocation] | None = None
        """Allocations of the reading of a batch that are alive; None where no batch is being read."""
        for moment, kind, address, num_bytes in sorted(self._changes(roots, device), key=lambda change: change[0]):
            if kind == "reading":
                read = {}
            elif kind == "delivery":
                batch = self._deliver(moment, num_bytes, batch, list((read or {}).values()))
                read = None
            elif num_bytes < 0:
                self._free(address, moment)
                if read is not None:
                    read.pop(address, None)
            elif read is not None:
                # It counts if it is the batch's.
                read[address] = self._alive[address] = Allocation(num_bytes, "temporary", moment)
            else:
                self._alive[address] = allocation = Allocation(num_bytes, "temporary", moment)
                self.allocations.append(allocation)
                self._by_address.setdefault(address, []).append(allocation)

    @property
    def addresses(self) -> set[int]:
        return set(self._by_address)

    def place(self, gradients: Iterable[int], states: Iterable[int]) -> None:
        """Give the allocations their categories, by the addresses of gradients and of optimizer state."""
        begins = [begin for begin, _ in self._backwards]
        for allocation in self.allocations:
            if allocation.category == "temporary" and not self._is_backward(allocation.born):
                following = bisect_left(begins, allocation.born)
                if following < len(begins) and allocation.alive_at(begins[following]):
                    allocation.category = "activations"
        for address in gradients:
            for allocation in self._by_address.get(address, ()):
                # What a kernel frees before backward is over has only had the address before.
                outlives = allocation.died is None or not self._is_backward(allocation.died)
                if self._is_backward(allocation.born) and outlives:
                    allocation.category = "gradients"
        for address in states:
            if (found := self._alive.get(address)) is not None:
                found.category = "optimizer_state"

    def largest(self) -> tuple[int, dict[MemoryCategory, int]]:
        """The most bytes alive at once, and those by category."""
        moments = [(allocation.born, allocation.num_bytes) for allocation in self.allocations]
        moments += [(one.died, -one.num_bytes) for one in self.allocations if one.died is not None]
        most = now = 0
        when: int | None = None
        for moment, num_bytes in sorted(moments):
            now += num_bytes
            if now > most:
                most, when = now, moment
        return most, {} if when is None else self._at(when)

    def at_end_of_forward(self) -> dict[MemoryCategory, int]:
        """Bytes by category before the backward pass with the most; empty without a backward pass."""
        found = [self._at(begin) for begin, _ in self._backwards]
        return max(found, key=lambda one: one.get("activations", 0), default={})

    def _at(self, moment: int) -> dict[MemoryCategory, int]:
        sums: Counter[MemoryCategory] = Counter()
        for allocation in self.allocations:
            if allocation.alive_at(moment):
                sums[allocation.category] += allocation.num_bytes
        return dict(sums)

    def _is_backward(self, moment: int) -> bool:
        place = bisect_left(self._backwards, (moment + 1, 0)) - 1
        return place >= 0 and moment <= self._backwards[place][1]

    def _free(self, address: int, moment: int) -> None:
        allocation = self._alive.pop(address, None)  # None: it was there before
        if allocation is not None:
            allocation.died = moment

    def _deliver(
        self, moment: int, num_bytes: int, last: Allocation | None, made: Sequence[Allocation]
    ) -> Allocation | None:
        """Count a batch: of what its reading has made as much as it has, the rest as memory of the data's or NumPy's.

        That rest is another's from the next batch on.
        """
        if last is not None and last.died is None:
            last.died = moment
        for allocation in made:
            if num_bytes <= 0:
                break
            allocation.num_bytes = min(allocation.num_bytes, num_bytes)
            allocation.born, allocation.category = moment, "other"
            num_bytes -= allocation.num_bytes
            self.allocations.append(allocation)
        if num_bytes <= 0:
            return None
        rest = Allocation(num_bytes, "other", moment)
        self.allocations.append(rest)
        return rest

    def _changes(self, roots: Sequence[Any], device: torch.device) -> Iterator[_Change]:
        waiting = [*roots]
        while waiting:
            event = waiting.pop()
            waiting += event.children
            kind, facts = event.typed
            if kind.name == "Allocation":
                if facts.device.type == device.type and facts.device.index in (None, device.index):
                    yield event.start_time_ns, "memory", facts.ptr, facts.alloc_size
            elif event.name.startswith(_BACKWARD):
                self._backwards.append((event.start_time_ns, event.end_time_ns))
            elif is_reading(event.name):
                yield event.start_time_ns, "reading", 0, 0
            elif (num_bytes := delivered_bytes(event.name)) is not None:
                yield event.start_time_ns, "delivery", 0, num_bytes
        self._backwards.sort()


_PADDED: Final = 1.02
"""The most that a backward pass of compiled code does of what two for each forward product are: the compiler pads the
sizes of some products and not of others, as a vocabulary of 50,257 to 50,264."""


@dataclass(slots=True)
class _Census:
    """Operations by the dtype of their operands."""

    flops: Counter[str] = field(default_factory=Counter)
    forward: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    """Those that backward of fused attention does a second time."""


def _census(events: Sequence[Any]) -> _Census:
    """Count the operations of the outermost of those operators that have a formula."""
    counted, known, census = formulas(), recomputations(), _Census()
    backwards = sorted((e.start_ns(), e.end_ns()) for e in events if e.name().startswith(_BACKWARD))
    found = [(e, operator) for e in events if (operator := _operator(e.name())) in counted]
    found.sort(key=lambda one: (one[0].start_thread_id(), one[0].start_ns(), -one[0].end_ns()))
    thread, over = None, 0
    for place, (event, operator) in enumerate(found):
        if event.start_thread_id() != thread:
            thread, over = event.start_thread_id(), 0
        if event.start_ns() < over or _only_calls(event, operator, found[place + 1 : place + 2]):
            continue
        over = event.end_ns()
        arguments = _arguments(event, operator)
        if arguments is None:
            continue
        dtype = dtype_name(arguments[0].dtype)
        result = operator(*arguments) if operator in _NEEDS_RESULT else None
        flops = counted[operator](*arguments, out_val=result)
        census.flops[dtype] += flops
        if operator in known:
            census.again[dtype] += known[operator](*arguments)
        last = bisect_left(backwards, (event.start_ns() + 1, 0)) - 1
        if last < 0 or event.start_ns() > backwards[last][1]:
            census.forward[dtype] += flops
    return census


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
    positional = [one for one in operator.default._schema.arguments if not one.kwarg_only]
    given = list(zip(event.shapes(), event.dtypes(), event.concrete_inputs(), strict=False))[: len(positional)]
    if not given or given[0][1] not in _TENSORS:
        return None
    return [
        torch.empty(shape, dtype=_TENSORS[dtype], device="meta") if dtype in _TENSORS else value
        for shape, dtype, value in given
    ]


def _held(model: nn.Module, optimizers: Sequence[Optimizer], data: Iterable[Tensor]) -> _Held:
    parameters = [*model.parameters()]
    parameters += [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    held: _Held = {}
    parts: tuple[tuple[MemoryCategory, Iterable[tuple[int, int]]], ...] = (
        ("data", _storages(data)),
        ("other", _storages(model.buffers())),
        ("parameters", _storages(parameters)),
        ("gradients", _storages(p.grad for p in parameters if p.grad is not None)),
        ("optimizer_state", _states(optimizers)),
    )
    for category, storages in parts:
        held |= {address: (num_bytes, category) for address, num_bytes in storages}
    return held


def _states(optimizers: Iterable[Optimizer]) -> Iterator[tuple[int, int]]:
    return _storages([*state.values()] for optimizer in optimizers for state in optimizer.state.values())


def _storages(values: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Address and bytes of the storage of each tensor in nested values."""
    for value in values:
        for tensor in plain_tensors_in(value):
            storage = tensor.untyped_storage()
            yield storage.data_ptr(), storage.nbytes()


def _result(timeline: _Timeline, held: _Held, census: _Census) -> TracedStep:
    before: Counter[MemoryCategory] = Counter()
    for num_bytes, category in held.values():
        before[category] += num_bytes
    made_bytes, at_peak = timeline.largest()
    at_end = timeline.at_end_of_forward()
    peak = dict(before + Counter(at_peak))
    return TracedStep(
        peak_bytes=sum(before.values()) + made_bytes,
        peak=peak,
        end_of_forward=dict(before + Counter(at_end)) if at_end else {},
        kept={},
        held_bytes=sum(before.values()),
        num_operators=None,
        flops=dict(census.flops),
        recomputed_flops=_recomputed(census),
        outputs={},
        forward_flops=dict(census.forward),
        is_compiled=True,
    )


def _recomputed(census: _Census) -> dict[str, int] | None:
    """Operations done a second time; None where backward did some again of which nobody knows how many.

    Without recomputation backward does at most twice what forward does, padding aside: a gradient for each of two
    operands.
    """
    backward = sum(census.flops.values()) - sum(census.forward.values()) - sum(census.again.values())
    return None if backward > 2 * _PADDED * sum(census.forward.values()) else dict(census.again)
