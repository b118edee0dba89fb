"""FSDP2's collectives, with what they are handed and how long a step waits for them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from ampsweep.parallel.ranks import Ranks
from ampsweep.parallel.waits import Waits, until_let_go


def measure_collectives(model: nn.Module, ranks: Ranks) -> None:
    """Have the collectives of a sharded model tell `ranks` the bytes that they reduce and the time that they take."""
    gather, reduce = _Gather(ranks), _Reduce(ranks)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(reduce)
            if ranks.device.type != "cpu":
                for group in _groups_of(module):
                    _measure_waits(group, ranks.waits)


def _groups_of(module: FSDPModule) -> Sequence[FSDPParamGroup]:
    """The groups of parameters that a module gathers at once: torch 2.11 has one, or none."""
    state: Any = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return [*state._fsdp_param_groups]
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


@contextmanager
def _waiting(ranks: Ranks, async_op: bool, *tensors: Tensor) -> Iterator[None]:
    """Measure the wait for a collective, which on a CPU blocks the computing."""
    if ranks.device.type != "cpu":
        yield
        return
    with ranks.waits, until_let_go(*(() if async_op else tensors)):
        yield


class _Gather(DefaultAllGather):
    """torch's own way to gather."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        with _waiting(self._ranks, async_op, output_tensor, input_tensor):
            return super().__call__(output_tensor, input_tensor, group, async_op)


class _Reduce(DefaultReduceScatter):
    """torch's own way to reduce and scatter."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work:
        self._ranks.reduced_bytes += input_tensor.nbytes
        with _waiting(self._ranks, async_op, output_tensor, input_tensor):
            return super().__call__(output_tensor, input_tensor, group, op, async_op)


def _measure_waits(group: FSDPParamGroup, waits: Waits) -> None:
    """Measure how long the computing stream waits for gathered parameters, and for the buffer of a reduction.

    It does so in private methods of torch's `FSDPParamGroup`, as there is no public place to measure from; a test fails
    when they change. The stream waits before the method, which then adds nothing.
    """
    module = group.device_handle

    def before_gathered() -> None:
        result = group._all_gather_result
        if result is not None and result.all_gather_event is not None:
            with waits:
                module.current_stream().wait_event(result.all_gather_event)

    def before_reduced() -> None:
        event = _event_before_reduction(group) if group.reduce_grads else None
        if event is not None:
            with waits:
                module.current_stream().wait_event(event)

    group.wait_for_unshard = _after(before_gathered, group.wait_for_unshard)  # type: ignore[method-assign]
    group.post_backward = _after(before_reduced, group.post_backward)  # type: ignore[method-assign]


def _event_before_reduction(group: FSDPParamGroup) -> torch.Event | None:
    """The end of the earlier reduction whose buffer the next one takes; None if there is a buffer for it."""
    context: Any = group.comm_ctx
    if hasattr(context, "reduce_scatter_states"):
        full = len(context.reduce_scatter_states) >= context.reduce_scatter_max_input_buffers
        return context.reduce_scatter_states[0].event if full else None
    earlier = context.reduce_scatter_state  # the only one, as torch 2.11 has it
    return None if earlier is None else earlier.event


def _after(before: Callable[[], None], method: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        before()
        return method(*args, **kwargs)

    return called
