"""The devices of ranks that other launchers have started: held by one rank of each machine for all that are there."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ampsweep.launch.device_lock import DeviceLock, held_locks, locks_of
from ampsweep.launch.signals import StopRequest
from ampsweep.parallel.place import RankPlace
from ampsweep.training.build.device import devices_of_ranks

_HELD: Final = "machines with devices"
_POLL_S: Final = 0.2


@contextmanager
def held_devices(
    name: str, place: RankPlace, store: Store, on_wait: Callable[[str], None], stop: StopRequest
) -> Iterator[None]:
    """Hold the devices of this name that the ranks of this machine have; entered by all ranks, when each has its own.

    The first rank of a machine takes them all, in one order, so that two trainings do not each hold what the other
    waits for; several launchers on a machine, as tasks of srun are, may have a device in common. The other ranks ask
    the store whether every machine has its devices: a collective would give up after some minutes.

    Raises:
        KeyboardInterrupt: `stop` is requested during the wait.
    """
    wanted: list[tuple[str, list[DeviceLock]]] = [("", [])] * place.world_size
    dist.all_gather_object(wanted, (socket.gethostname(), _locks(name, place)))
    hosts = [host for host, _ in wanted]
    own = hosts[place.rank]
    with ExitStack() as held:
        if hosts.index(own) == place.rank:
            of_machine = [lock for host, locks in wanted if host == own for lock in locks]
            held.enter_context(held_locks(of_machine, on_wait, stop))
            store.add(_HELD, 1)
        while store.add(_HELD, 0) < len({*hosts}):
            if stop.requested:
                raise KeyboardInterrupt
            time.sleep(_POLL_S)
        yield


def _locks(name: str, place: RankPlace) -> list[DeviceLock]:
    """The locks of the devices that the ranks of one launcher have; they are told by the first of those."""
    if place.local_rank > 0:
        return []
    found = devices_of_ranks(name)[: place.local_world_size]
    return locks_of([str(one) for one in (found[:1] if found[0].device.type == "cpu" else found)])
