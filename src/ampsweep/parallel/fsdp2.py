"""FSDP2: shards parameters, gradients and optimizer state, and gathers a block's parameters while it runs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import DTensor

from ampsweep.config.errors import UnsupportedError
from ampsweep.config.schema import ParallelConfig, PrecisionConfig
from ampsweep.config.value_checks import policy_casts
from ampsweep.parallel.communication_time import Waits, until_released
from ampsweep.parallel.group import Group
from ampsweep.parallel.model_support import blocks_of, roots_of
from ampsweep.parallel.ranks import Ranks
from ampsweep.precision import Precision
from ampsweep.precision.precision import cast_floating_point, precision_class


class Sharded(Ranks):
    def __init__(self, config: ParallelConfig, group: Group, device: torch.device) -> None:
        super().__init__(group, device)
        self._config = config
        self.waits = Waits() if device.type == "cpu" else None  # an accelerator's stream waits invisibly
        self._roots: list[FSDPModule] = []
        self._sharded: list[FSDPModule] = []
        self._trained: list[nn.Parameter] = []

    def precision(self, config: PrecisionConfig, device: torch.device) -> Precision:
        has_policy = config.autocast and self._config.mixed_precision == "policy"
        if has_policy and precision_class(config) is not Precision:
            raise UnsupportedError(policy_casts(config.mode))
        return _CastByPolicy(config, device) if has_policy else Precision(config, device)

    def distribute(self, model: nn.Module, precision: Precision, *, in_parts: bool = False) -> nn.Module:
        precision.adapt(model)
        model = cast_floating_point(model, precision.parameters_dtype)
        shard(model, self._config, precision, init_device_mesh(self.device.type, (self.world_size,)), in_parts=in_parts)
        model.to(self.device)  # buffers, and unsharded parameters
        self._roots = [cast(FSDPModule, root) for root in roots_of(model, in_parts=in_parts)]
        self._sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for module in self._sharded:
            module.set_custom_reduce_scatter(_Reduce(self))
            if self.waits is not None:
                module.set_custom_all_gather(_Gather(self.waits))
        precision.joins_losses = precision.frees_parameters = True
        return model

    def micro_batches(self, num: int, trained: Sequence[nn.Parameter] | None) -> Iterable[object]:
        if trained is not None:
            self._train_only(trained)
        for number in range(num):
            for root in self._roots if num > 1 else ():
                root.set_requires_gradient_sync(number + 1 == num)
            yield number

    def _train_only(self, trained: Sequence[nn.Parameter]) -> None:
        # Autograd's leaves are the gathered parameters, which a backward pass cannot take as `inputs`.
        wanted = {*trained}
        if all(parameter.requires_grad == (parameter in wanted) for parameter in self._trained):
            return
        for module in self._sharded:
            module.reshard()  # the next gathering copies requires_grad
        for parameter in self._trained:
            parameter.requires_grad_(parameter in wanted)

    def backward(self, precision: Precision) -> Callable[..., None]:
        def backward(*losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
            precision.backward(*losses)

        return backward

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        with super().evaluation(model):
            yield
        for module in self._sharded:
            module.reshard()  # else a root's parameters stay gathered, in the policy's dtype, until the next backward

    def clip_grad_norm_(self, parameters: Sequence[Tensor], max_norm: float) -> Tensor:
        return _whole(super().clip_grad_norm_(parameters, max_norm))

    def grad_norm(self, gradients: list[Tensor], device: torch.device) -> Tensor:
        return _whole(nn.utils.get_total_norm(gradients))


def shard(
    model: nn.Module, config: ParallelConfig, precision: Precision, mesh: DeviceMesh, *, in_parts: bool = False
) -> None:
    """Shard the parameters of a model's blocks, and the rest, in place, on the mesh's device."""
    reduced = getattr(torch, config.reduce_dtype or precision.config.parameters)
    gathered = precision.autocast_dtype if precision.casts_by_policy else None  # else autocast casts
    policy = MixedPrecisionPolicy(gathered, reduced)
    roots = roots_of(model, in_parts=in_parts)
    for block in blocks_of(model, config.blocks):
        if not any(block is root for root in roots):
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
    # Outputs are float32, so that losses are, as under autocast.
    whole = MixedPrecisionPolicy(gathered, reduced, torch.float32) if precision.casts_by_policy else policy
    for root in roots:
        fully_shard(root, mesh=mesh, mp_policy=whole)


def _whole(norm: Tensor) -> Tensor:
    whole: Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole


class _Gather(DefaultAllGather):
    """torch's all-gather with its time, which on a CPU blocks the computation."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        with self._waits, until_released(*(() if async_op else (output_tensor, input_tensor))):
            return super().__call__(output_tensor, input_tensor, group, async_op)


class _Reduce(DefaultReduceScatter):
    """torch's reduce-scatter with its bytes, and on a CPU its time."""

    def __init__(self, ranks: Sharded) -> None:
        self._ranks = ranks

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work:
        self._ranks.reduced_bytes += input_tensor.nbytes
        waits = self._ranks.waits or nullcontext()
        with waits, until_released(*(() if async_op else (output_tensor, input_tensor))):
            return super().__call__(output_tensor, input_tensor, group, op, async_op)


class _CastByPolicy(Precision):
    """A mode that computes, in evaluations too, in the dtype of the gathered parameters instead of autocast's."""

    casts_by_policy = True

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def eval_autocast(self, how: str | None = None) -> AbstractContextManager[None]:
        return nullcontext()
