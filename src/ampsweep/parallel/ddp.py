"""DistributedDataParallel: each rank has the whole model, and gradients are averaged."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ampsweep.config.schema import ParallelConfig
from ampsweep.parallel.fitting import unused
from ampsweep.parallel.group import Group
from ampsweep.parallel.ranks import Ranks
from ampsweep.parallel.reductions import Averaging, hook_for
from ampsweep.precision import Precision


class Replicated(Ranks):
    """A rank of a training by DDP.

    DDP's engine reduces gradients during the backward pass of a whole model. Where a step has several turns, or a loss
    calls only parts of the model, they are reduced after the backward passes instead.
    """

    def __init__(self, config: ParallelConfig, group: Group, device: torch.device) -> None:
        super().__init__(group, device)
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
            bucket_cap_mb=config.bucket_cap_mb,
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
