"""The process group of a training's ranks, with their store and heartbeats."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public by torch's docs

from ampsweep.parallel.base import OtherRankError, RankFault
from ampsweep.parallel.rank_environment import RankPlace
from ampsweep.parallel.rank_heartbeat import RankHeartbeat, Report

_ATTEMPT: Final = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
_LOST_RANK: Final = re.compile(r"gloo|nccl|connection (closed|reset|was|refused)|by peer|broken pipe|tcpstore", re.I)
"""Words in the errors of communication with a lost rank."""


def store_of(place: RankPlace) -> Store:
    """Connect to the store that the launcher or rank 0 serves; each restart by torchrun has its own keys."""
    store = TCPStore(
        place.address,
        place.port,
        place.world_size,
        is_master=place.rank == 0 and not place.has_store,
        timeout=timedelta(minutes=10),
        wait_for_workers=False,
        multi_tenant=True,
    )
    return PrefixStore(f"ampsweep/{_ATTEMPT}", store)


def served_store() -> TCPStore:
    """Serve a store for ranks on this machine, at its `port`, while the object lives."""
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


class Group:
    def __init__(self, place: RankPlace, store: Store, report: Report, end: Report) -> None:
        self.place, self.store = place, store
        self._report = report
        # A second connection: the first may be blocked by a wait for a key.
        timeout = timedelta(seconds=5)
        watched = TCPStore(place.address, place.port, is_master=False, timeout=timeout, wait_for_workers=False)
        watched_store = PrefixStore(f"ampsweep/watch/{_ATTEMPT}", watched)
        self._heartbeat = RankHeartbeat(watched_store, place.rank, place.world_size, report, end)
        self.is_broken = False  # True once a fault has ended the training: other ranks may be gone

    def cause(self, error: BaseException, fault: RankFault) -> RankFault:
        """The first fault: another rank's, if the error here only follows from it."""
        self.is_broken = True
        may_follow = isinstance(error, dist.DistError | OtherRankError) or _LOST_RANK.search(str(error)) is not None
        first = self._heartbeat.cause(fault, may_follow=may_follow)
        self._report(first)
        return first

    def close(self) -> None:
        self._heartbeat.close()


@contextmanager
def joined(place: RankPlace, store: Store, device: torch.device, report: Report, end: Report) -> Iterator[Group]:
    """Join the process group: gloo on the host, the default backend (NCCL) on the accelerator. `report` is called in
    any thread, maybe repeatedly, with the fault that ends the training; `end` by a thread that then ends this
    process."""
    own = dist.get_default_backend_for_device(device)
    backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{own}"
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=place.rank, world_size=place.world_size)
    group = Group(place, store, report, end)
    try:
        yield group
    except BaseException:
        group.is_broken = True
        raise
    finally:
        group.close()
        if not group.is_broken:  # else it would wait for lost ranks
            dist.destroy_process_group()
