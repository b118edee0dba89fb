"""DistributedDataParallel: each rank has the whole model, and gradients are averaged."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public by torch's docs
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ampsweep.config.schema import ParallelConfig
from ampsweep.parallel.communication_time import Waits, until_released
from ampsweep.parallel.group import Group
from ampsweep.parallel.model_support import unused
from ampsweep.parallel.ranks import Ranks
from ampsweep.precision import Precision

_BUCKET_BYTES: Final = 25 * 2**20  # DDP's default
Hook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


class Replicated(Ranks):
    """A rank of a training by DDP, whose engine reduces gradients during backward. With several turns a step, or losses
    that call only parts of the model, gradients are averaged after the backward passes instead."""

    def __init__(self, config: ParallelConfig, group: Group, device: torch.device) -> None:
        super().__init__(group, device)
        self.waits: Waits = Waits()
        self.has_hook = False  # the engine reduces gradients by a communication hook
        self._config = config
        self.engine: DistributedDataParallel | None = None  # reduces during backward; None: averaged afterwards
        self._was_called = False  # the engine, in this turn
        self._names: dict[nn.Parameter, str] = {}  # of the trained parameters
        self._num_bytes = 0  # of all their gradients in the dtype of the reduction
        self._averaging = Averaging(self, torch.float32)

    def distribute(self, model: nn.Module, precision: Precision, *, in_parts: bool = False) -> nn.Module:
        if self._config.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        model = precision.convert(model)
        reduce_dtype = getattr(torch, self._config.reduce_dtype or precision.config.parameters)
        self._averaging = Averaging(self, reduce_dtype, may_differ=self._config.find_unused_parameters)
        self._names = {weight: name for name, weight in model.named_parameters() if weight.requires_grad}
        self._num_bytes = sum(weight.numel() for weight in self._names) * reduce_dtype.itemsize
        if in_parts:
            return model
        self.engine = self._engine_behind(model)
        if (hook := hook_for(reduce_dtype, precision.parameters_dtype)) is not None:
            self.engine.register_comm_hook(None, hook)
            self.has_hook = True
        precision.joins_losses = True
        return model

    def _engine_behind(self, model: nn.Module) -> DistributedDataParallel:
        """Put DDP behind the model's own `forward`, so that a task keeps its model. Calls without gradients, whose
        number may differ between ranks, bypass DDP, which broadcasts buffers before each."""
        original = _Original(model, self.waits)
        ddp = DistributedDataParallel(
            original,
            device_ids=None if self.device.type == "cpu" else [self.device],
            gradient_as_bucket_view=True,
            find_unused_parameters=self._config.find_unused_parameters,
        )

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return original(*args, **kwargs)
            self._was_called = True
            original.begin()
            return ddp(*args, **kwargs)

        model.forward = forward
        model.compile = original.compile  # type: ignore[method-assign]
        return ddp

    def micro_batches(self, num: int, trained: Sequence[nn.Parameter] | None) -> Iterable[object]:
        if self.engine is None:
            yield from range(num)
            self._averaging.average_(self._names if trained is None else dict.fromkeys(trained, ""))
            return
        self._was_called = False
        for number in range(num):
            self.engine.require_backward_grad_sync = number + 1 == num
            yield number
        if not self._was_called:
            self._averaging.average_(self._names)
            return
        self.reduced_bytes += self._num_bytes
        if not self._config.find_unused_parameters:  # DDP notices a parameter without gradient only in the next step
            for parameter, name in self._names.items():
                if parameter.grad is None:
                    raise RuntimeError(unused(name))

    def backward(self, precision: Precision) -> Callable[..., None]:
        def backward(*losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
            if self.engine is None or not self.engine.require_backward_grad_sync:
                precision.backward(*losses, inputs=inputs)
                return
            returned = self.waits.from_last_gradient(losses[0])
            precision.backward(*losses, inputs=inputs)
            returned()

        return backward


class _Original(nn.Module):
    def __init__(self, model: nn.Module, waits: Waits) -> None:
        super().__init__()
        self.model, self._forward, self._waits = model, model.forward, waits
        self._has_buffers = any(True for _ in model.buffers())
        self._is_waiting = False

    def begin(self) -> None:
        """Begin to time DDP's broadcast of buffers, which ends as it calls `forward`."""
        if self._has_buffers:
            self._is_waiting = True
            self._waits.__enter__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_waiting:
            self._is_waiting = False
            self._waits.__exit__()
        return self._forward(*args, **kwargs)


def hook_for(reduce_dtype: torch.dtype, parameters: torch.dtype) -> Hook | None:
    """The DDP communication hook that averages gradients in this dtype; None if it is the gradients' own. For 16 bits
    these are torch's compression hooks, which divide by the number of ranks before the sum."""
    if reduce_dtype == parameters:
        return None
    return {torch.float16: fp16_compress_hook, torch.bfloat16: _in_bfloat16, torch.float32: _widened}[reduce_dtype]


def _in_bfloat16(group: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket in bfloat16: without NCCL, DDP refuses torch's hook by name, although gloo can do it."""
    reduced: torch.futures.Future[Tensor] = bf16_compress_hook(group, bucket)
    return reduced


def _widened(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    own = bucket.buffer()
    wide = own.float().div_(dist.get_world_size())
    work = dist.all_reduce(wide, async_op=True)
    assert work is not None
    narrowed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: own.copy_(done.value()[0]))
    return narrowed


class Averaging:
    """Averages gradients over all ranks after a backward pass. The ranks agree once per set of parameters which of them
    have gradients, or with `may_differ` in each step, where a missing gradient counts as zero."""

    def __init__(self, ranks: Replicated, reduce_dtype: torch.dtype, *, may_differ: bool = False) -> None:
        self._ranks, self._reduce_dtype, self._may_differ = ranks, reduce_dtype, may_differ
        self._agreed: dict[tuple[int, ...], list[bool]] = {}

    def average_(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average these gradients in place; RuntimeError: this rank's gradients are of other parameters."""
        given = [*parameters]
        wanted = self._wanted(given)
        with torch.no_grad():
            for parameter, is_wanted in zip(given, wanted, strict=True):
                if is_wanted and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            for bucket in _buckets(weight.grad for weight in given if weight.grad is not None):
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket]).to(self._reduce_dtype)
                flat.div_(self._ranks.world_size)
                self._ranks.reduced_bytes += flat.nbytes
                with self._ranks.waits, until_released(flat):
                    dist.all_reduce(flat)
                parts = torch.split(flat, [gradient.numel() for gradient in bucket])
                for gradient, part in zip(bucket, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def _wanted(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        present = [parameter.grad is not None for parameter in parameters]
        if self._may_differ:
            return self._ranks.anywhere(present)
        key = tuple(map(id, parameters))
        if key not in self._agreed:
            self._agreed[key] = self._ranks.anywhere(present)
        if present != self._agreed[key]:
            raise RuntimeError(
                "the losses of the ranks depend on different parameters; use parallel.find_unused_parameters=true"
            )
        return present


def _buckets(gradients: Iterable[Tensor]) -> Iterable[Sequence[Tensor]]:
    bucket: list[Tensor] = []
    num_bytes = 0
    for gradient in gradients:
        if bucket and (num_bytes >= _BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(gradient)
        num_bytes += gradient.nbytes
    if bucket:
        yield bucket
