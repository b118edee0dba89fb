"""The process group of a training's ranks, with their store and their watch on each other."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public by torch's docs

from ampsweep.parallel.base import OtherRankError, RankFault
from ampsweep.parallel.peers import Peers
from ampsweep.parallel.place import RankPlace

_MEETING: Final = timedelta(minutes=10)
_COMMUNICATION: Final = re.compile(
    r"gloo|nccl|connection (closed|reset|was|refused)|by peer|broken pipe|tcpstore", re.I
)
"""Words of what communication raises when a rank at its other end is gone."""


def store_of(place: RankPlace) -> Store:
    """Connect to the ranks' store, which the launcher serves, or rank 0; each attempt of the launcher has its own."""
    store = TCPStore(
        place.address,
        place.port,
        place.world_size,
        is_master=place.rank == 0 and not place.has_store,
        timeout=_MEETING,
        wait_for_workers=False,
        multi_tenant=True,
    )
    return PrefixStore(f"ampsweep/{_attempt()}", store)


def served_store() -> TCPStore:
    """Serve a store for ranks on this machine, for as long as it is held; `port` is where they find it."""
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


class Group:
    """The ranks as one of them has joined them."""

    def __init__(
        self, place: RankPlace, store: Store, tell: Callable[[RankFault], None], end: Callable[[RankFault], None]
    ) -> None:
        self.place, self.store = place, store
        self._tell = tell
        self._peers = Peers(_watched_store(place), place.rank, place.world_size, tell, end)
        self.is_broken = False
        """True once a fault has ended the training: the others may be gone."""

    def cause(self, error: BaseException, fault: RankFault) -> RankFault:
        """The fault that ends the training: another rank's, if the error here only follows from it."""
        self.is_broken = True
        first = self._peers.cause(fault, may_follow=is_of_communication(error))
        self._tell(first)
        return first

    def close(self) -> None:
        """End the watch on the others, and theirs on this rank."""
        self._peers.close()


def _watched_store(place: RankPlace) -> Store:
    """A second connection, as one waits while it is asked."""
    timeout = timedelta(seconds=5)
    store = TCPStore(place.address, place.port, is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore(f"ampsweep/watch/{_attempt()}", store)


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


@contextmanager
def joined(
    place: RankPlace,
    store: Store,
    device: torch.device,
    tell: Callable[[RankFault], None],
    end: Callable[[RankFault], None],
) -> Iterator[Group]:
    """Join the other ranks in a process group: gloo on the host, and beside it NCCL on CUDA devices.

    Args:
        tell: called, in any thread and maybe more than once, with the fault that ends the training.
        end: called in another thread before this process ends, with a fault that the main thread has not noticed.
    """
    backend = (
        "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    )
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=place.rank, world_size=place.world_size)
    group = Group(place, store, tell, end)
    try:
        yield group
    except BaseException:
        group.is_broken = True
        raise
    finally:
        group.close()
        if not group.is_broken:  # else its end would wait for ranks that are gone
            dist.destroy_process_group()


def is_of_communication(error: BaseException) -> bool:
    """Return True for an error that another rank's end causes."""
    return isinstance(error, dist.DistError | OtherRankError) or bool(_COMMUNICATION.search(str(error)))
