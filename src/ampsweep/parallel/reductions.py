"""Reductions of gradients across ranks: in their own dtype or another, by DDP's hooks or by hand."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public by torch's docs
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook

from ampsweep.parallel.ranks import Ranks
from ampsweep.parallel.waits import until_let_go

_BUCKET_BYTES: Final = 25 * 2**20
"""DDP's default."""

Hook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


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

    def __init__(self, ranks: Ranks, reduce_dtype: torch.dtype, *, may_differ: bool = False) -> None:
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
