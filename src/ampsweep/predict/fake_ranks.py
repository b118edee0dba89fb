"""A rank of a training whose other ranks do not exist: torch's fake process group, in a world of its own."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
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
from ampsweep.parallel.place import RankPlace
from ampsweep.parallel.strategy import make_parallel
from ampsweep.precision import Precision

_numbers: Final = count(2**31)
"""Names of groups, which torch numbers, beyond those that this process could have."""
_SIZES_OF_WHOLE: Final = "_propagate_tensor_meta_non_cached"
_find_sizes_of_whole: Final[Any] = getattr(ShardingPropagator, _SIZES_OF_WHOLE)
_DDP: Final = partial(DistributedDataParallel, init_sync=False)
"""DDP that gives the ranks no common parameters first, which it compares by their values."""


class FakeRanks:
    """The ranks of a training, of which only one is there; what it would exchange with the others has the right size.

    A group of real ranks that this process may belong to is left alone: all groups of a process are in an object that
    can be replaced, an "experimental extension point" of torch's (`distributed_c10d._world`).
    """

    def __init__(self, config: ParallelConfig, device: torch.device, world_size: int, rank: int = 0) -> None:
        self._world = _World()
        with self(), unset_fake_temporarily():
            hook = sys.excepthook
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
            sys.excepthook = hook  # torch's would tell a rank in each error message
            place = RankPlace(rank, world_size, rank, world_size, address="", port=0, has_store=False)
            self.parallel: Parallel = make_parallel(config, cast(Group, _Joined(place)), device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run what is inside as this rank."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(distributed_c10d, "_world", self._world))
            stack.enter_context(patch.object(dist, "all_reduce", _all_reduce))
            # DDP divides its first bucket after the first step in an order that ranks send each other by values. The
            # bytes are the same; a hook's copies are there all at once, as where reductions lag behind backward.
            stack.enter_context(patch.object(Reducer, "_rebuild_buckets", lambda _: False))
            # The sizes of a whole tensor, of which each rank has a part, are found by fake tensors of that size.
            stack.enter_context(patch.object(ShardingPropagator, _SIZES_OF_WHOLE, _sizes_of_whole))
            yield

    def distribute(self, model: nn.Module, precision: Precision, *, in_parts: bool) -> nn.Module:
        """Distribute a fake model as a rank does; it is on its device and in its dtype already."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(nn.Module, "_apply", lambda module, *_, **__: module))
            stack.enter_context(patch.object(ddp, "DistributedDataParallel", _DDP))
            model = self.parallel.distribute(model, precision, in_parts=in_parts)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.unshard()  # pads shards, which FSDP does anew for tensors without values
                part.reshard()
        if isinstance(self.parallel, ddp.Replicated) and self.parallel.engine and not self.parallel.has_hook:
            self.parallel.engine.register_comm_hook(None, _reduced)
        return model


def _sizes_of_whole(*args: Any) -> Any:
    """Find the sizes of a whole tensor outside of every mode: no rank allocates it."""
    with without_modes():
        return _find_sizes_of_whole(*args)


class _Joined:
    """The place of a rank that has no others to watch."""

    def __init__(self, place: RankPlace) -> None:
        self.place = place


class _World(distributed_c10d._World):
    """Process groups apart from all others of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._of_kind: dict[str, Any] = {}
        self._num_groups = next(_numbers)

    pg_map = property(lambda self: self._of_kind.setdefault("pg_map", {}))
    pg_names = property(lambda self: self._of_kind.setdefault("pg_names", {}))
    pg_group_ranks = property(lambda self: self._of_kind.setdefault("ranks", {}))
    pg_backend_config = property(lambda self: self._of_kind.setdefault("config", {}))
    tags_to_pg = property(lambda self: self._of_kind.setdefault("tags_to_pg", {}))
    pg_to_tag = property(lambda self: self._of_kind.setdefault("pg_to_tag", {}))

    @property
    def group_count(self) -> int:
        return self._num_groups

    @group_count.setter
    def group_count(self, value: int) -> None:
        self._num_groups = value


class _Reduced:
    """The work of a reduction that is done; that of the fake group does not know its result."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self, *_: object) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        done: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        done.set_result([self._tensor])
        return done


_all_reduce_by_group: Final = dist.all_reduce


def _all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> _Reduced:
    _all_reduce_by_group(tensor, *args, **kwargs)
    return _Reduced(tensor)


def _reduced(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Reduce a bucket in place, as DDP does without a hook."""
    _all_reduce(bucket.buffer(), async_op=True)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
