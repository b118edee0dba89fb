"""A single rank of a training: torch's fake process group, apart from the process's own groups."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed import GradBucket, Reducer, distributed_c10d  # type: ignore[attr-defined]  # public by the docs
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from ampsweep.config.schema import ParallelConfig
from ampsweep.observe.operators import unset_fake_temporarily, without_modes
from ampsweep.parallel import ddp
from ampsweep.parallel.base import Parallel
from ampsweep.parallel.group import Group
from ampsweep.parallel.rank_environment import RankPlace
from ampsweep.parallel.strategy import make_parallel
from ampsweep.precision import Precision

_numbers: Final = count(2**31)  # torch names groups by numbers; the process's own do not reach these
_GROUPS: Final = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag")
_SIZES_OF_WHOLE: Final = "_propagate_tensor_meta_non_cached"
_find_sizes_of_whole: Final[Any] = getattr(ShardingPropagator, _SIZES_OF_WHOLE)
_DDP: Final = partial(DistributedDataParallel, init_sync=False)
"""DDP without the initial broadcast of parameters, as it compares values."""


class FakeRanks:
    """The ranks of a training, of which only one exists; the tensors that it exchanges have the right sizes. The
    process's own groups are not touched: torch keeps all groups in an object that can be replaced, its "experimental
    extension point" (`distributed_c10d._world`)."""

    def __init__(self, config: ParallelConfig, device: torch.device, world_size: int, rank: int = 0) -> None:
        self._world = _new_world()
        with self(), unset_fake_temporarily():
            hook = sys.excepthook
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
            sys.excepthook = hook  # torch's would put a rank into each error message
            place = RankPlace(rank, world_size, rank, world_size, address="", port=0, has_store=False)
            self.parallel: Parallel = make_parallel(config, cast(Group, SimpleNamespace(place=place)), device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(patch.object(distributed_c10d, "_world", self._world))
            stack.enter_context(patch.object(dist, "all_reduce", _all_reduce))
            # DDP divides its first bucket after the first step in an order that ranks exchange by values. The bytes are
            # the same; a hook's copies exist all at once, as if reductions lagged behind backward.
            stack.enter_context(patch.object(Reducer, "_rebuild_buckets", lambda _: False))
            # torch finds the sizes of a sharded tensor by fake tensors of the whole size, which no rank allocates.
            stack.enter_context(patch.object(ShardingPropagator, _SIZES_OF_WHOLE, _sizes_of_whole))
            yield

    def distribute(self, model: nn.Module, precision: Precision, *, in_parts: bool) -> nn.Module:
        """Distribute a fake model that already has its device and dtype."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(nn.Module, "_apply", lambda module, *_, **__: module))
            stack.enter_context(patch.object(ddp, "DistributedDataParallel", _DDP))
            model = self.parallel.distribute(model, precision, in_parts=in_parts)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.unshard()  # pads shards, which FSDP repeats for tensors without values
                part.reshard()
        if isinstance(self.parallel, ddp.Replicated) and self.parallel.engine and not self.parallel.has_hook:
            self.parallel.engine.register_comm_hook(None, _reduced)
        return model


def _sizes_of_whole(*args: Any) -> Any:
    with without_modes():
        return _find_sizes_of_whole(*args)


def _new_world() -> Any:
    """A state of process groups that has none; torch's own class keeps it in the module, for the whole process."""
    state: dict[str, Any] = {name: {} for name in _GROUPS}
    return type("_World", (distributed_c10d._World,), state | {"group_count": next(_numbers)})()


def _done(result: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return future


_all_reduce_by_group: Final = dist.all_reduce


def _all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    _all_reduce_by_group(tensor, *args, **kwargs)
    return _create_work_from_future(_done([tensor]))  # the fake group's handle has no result


def _reduced(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    # In place, as DDP does without a hook.
    _all_reduce(bucket.buffer(), async_op=True)
    return _done(bucket.buffer())
