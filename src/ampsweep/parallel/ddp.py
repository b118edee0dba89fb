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
from ampsweep.parallel.fitting import unused
from ampsweep.parallel.group import Group
from ampsweep.parallel.ranks import Ranks
from ampsweep.parallel.waits import Waits, until_let_go
from ampsweep.precision import Precision

_BUCKET_BYTES: Final = 25 * 2**20
"""DDP's default."""
Hook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


class Replicated(Ranks):
    """A rank of a training by DDP.

    DDP's engine reduces gradients during the backward pass of a whole model. Where a step has several turns, or a loss
    calls only parts of the model, they are reduced after the backward passes instead.
    """

    def __init__(self, config: ParallelConfig, group: Group, device: torch.device) -> None:
        super().__init__(group, device)
        self.waits: Waits = Waits()
        self.has_hook = False
        """The engine reduces gradients by a hook, not by itself."""
        self._config = config
        self._engine: _Engine | None = None
        self._names: dict[nn.Parameter, str] = {}
        """The parameters that are trained."""
        self._num_bytes = 0
        """Bytes of all their gradients, as they are reduced."""
        self._averaging = Averaging(self, torch.float32)

    def distribute(self, model: nn.Module, precision: Precision, *, in_parts: bool = False) -> nn.Module:
        if self._config.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        model = precision.convert(model)
        reduce_dtype = getattr(torch, self._config.reduce_dtype or precision.config.parameters)
        self._averaging = Averaging(self, reduce_dtype, may_differ=self._config.find_unused_parameters)
        self._names = {one: name for name, one in model.named_parameters() if one.requires_grad}
        self._num_bytes = sum(one.numel() for one in self._names) * reduce_dtype.itemsize
        if in_parts:
            return model
        self._engine = engine = _Engine(model, self, self._config)
        if (hook := hook_for(reduce_dtype, precision.parameters_dtype)) is not None:
            engine.ddp.register_comm_hook(None, hook)
            self.has_hook = True
        precision.joins_losses = True
        return model

    @property
    def engine(self) -> DistributedDataParallel | None:
        """The engine that reduces gradients while backward goes on; None where they are reduced afterwards."""
        return None if self._engine is None else self._engine.ddp

    def micro_batches(self, num: int, trained: Sequence[nn.Parameter] | None) -> Iterable[object]:
        if self._engine is None:
            yield from range(num)
            self._averaging.average_(self._names if trained is None else dict.fromkeys(trained, ""))
            return
        self._engine.was_called = False
        for number in range(num):
            self._engine.ddp.require_backward_grad_sync = number + 1 == num
            yield number
        if not self._engine.was_called:
            self._averaging.average_(self._names)
            return
        self.reduced_bytes += self._num_bytes
        if not self._config.find_unused_parameters:
            self._require_all_gradients()

    def backward(self, precision: Precision) -> Callable[..., None]:
        def backward(*losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
            if self._engine is None or not self._engine.ddp.require_backward_grad_sync:
                precision.backward(*losses, inputs=inputs)
                return
            returned = self.waits.from_last_gradient(losses[0])
            precision.backward(*losses, inputs=inputs)
            returned()

        return backward

    def _require_all_gradients(self) -> None:
        """Raise a RuntimeError for a parameter without gradient, which DDP notices only with the next step."""
        for parameter, name in self._names.items():
            if parameter.grad is None:
                raise RuntimeError(unused(name))


class _Engine:
    """DDP around a model, which stays the object that a task knows; its calls go through DDP.

    Calls without gradients, of which ranks may have different numbers, do not: DDP shares buffers before each.
    """

    def __init__(self, model: nn.Module, ranks: Replicated, config: ParallelConfig) -> None:
        self.was_called = False
        original = _Original(model, ranks)
        self.ddp = ddp = DistributedDataParallel(
            original,
            device_ids=None if ranks.device.type == "cpu" else [ranks.device],
            gradient_as_bucket_view=True,
            find_unused_parameters=config.find_unused_parameters,
        )

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return original(*args, **kwargs)
            self.was_called = True
            original.begin()
            return ddp(*args, **kwargs)

        model.forward = forward
        model.compile = original.compile  # type: ignore[method-assign]


class _Original(nn.Module):
    """A model with the forward pass that it had before DDP's took its place."""

    def __init__(self, model: nn.Module, ranks: Replicated) -> None:
        super().__init__()
        self.model = model
        self._forward = model.forward
        self._waits = ranks.waits
        self._shares = any(True for _ in model.buffers())
        self._is_begun = False

    def begin(self) -> None:
        """Begin to wait for the first rank's buffers, which DDP shares before a forward pass."""
        if self._shares:
            self._is_begun = True
            self._waits.__enter__()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_begun:
            self._is_begun = False
            self._waits.__exit__()
        return self._forward(*args, **kwargs)


def hook_for(reduce_dtype: torch.dtype, parameters: torch.dtype) -> Hook | None:
    """The hook with which DDP averages gradients in this dtype; None where that is the gradients' own.

    To 16 bits they are torch's own compression hooks; both divide by the number of ranks before they add up.
    """
    if reduce_dtype == parameters:
        return None
    return {torch.float16: fp16_compress_hook, torch.bfloat16: _in_bfloat16, torch.float32: _widened}[reduce_dtype]


def _in_bfloat16(group: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket in bfloat16; DDP refuses torch's hook by its name where there is no NCCL, but gloo can."""
    reduced: torch.futures.Future[Tensor] = bf16_compress_hook(group, bucket)
    return reduced


def _widened(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of 16-bit gradients in float32."""
    own = bucket.buffer()
    wide = own.float().div_(dist.get_world_size())
    work = dist.all_reduce(wide, async_op=True)
    assert work is not None
    narrowed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: own.copy_(done.value()[0]))
    return narrowed


class Averaging:
    """The averages of gradients over all ranks, computed after a backward pass.

    The ranks agree once for each set of parameters which ones have gradients, and each then compares by itself.

    Args:
        may_differ: agree in each step instead; a gradient that some ranks lack counts as zero there.
    """

    def __init__(self, ranks: Replicated, reduce_dtype: torch.dtype, *, may_differ: bool = False) -> None:
        self._ranks, self._reduce_dtype, self._may_differ = ranks, reduce_dtype, may_differ
        self._agreed: dict[tuple[int, ...], list[bool]] = {}

    def average_(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of these parameters in place.

        Raises:
            RuntimeError: this rank has gradients of others than the rest.
        """
        asked = [*parameters]
        wanted = self._wanted(asked)
        with torch.no_grad():
            for parameter, is_wanted in zip(asked, wanted, strict=True):
                if is_wanted and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            for bucket in _buckets(one.grad for one in asked if one.grad is not None):
                self._average_bucket_(bucket)

    def _average_bucket_(self, bucket: Sequence[Tensor]) -> None:
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket]).to(self._reduce_dtype)
        flat.div_(self._ranks.world_size)
        self._ranks.reduced_bytes += flat.nbytes
        with self._ranks.waits, until_let_go(flat):
            dist.all_reduce(flat)
        for gradient, part in zip(bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _wanted(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        present = [one.grad is not None for one in parameters]
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
