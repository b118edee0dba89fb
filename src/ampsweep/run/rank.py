"""A rank of a run on several ranks: joins the others, then trains like a run on one device."""

import base64
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # public by torch's docs

from ampsweep.config.errors import UserError
from ampsweep.config.schema import ParallelConfig
from ampsweep.launch.device_lock import DeviceLock, held_locks, lock_of
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.monitors.contamination import UseBeforeRun
from ampsweep.monitors.processors import count_companions, num_available_cores
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.base import RankFault
from ampsweep.parallel.group import Group, joined, store_of
from ampsweep.parallel.rank_environment import RankPlace, place_in
from ampsweep.parallel.strategy import make_parallel
from ampsweep.records.outcome import Status
from ampsweep.run.failure import record_stuck
from ampsweep.run.lifecycle import PreparedRun, Send, run_prepared
from ampsweep.run.messages import Say
from ampsweep.run.request import RunRequest
from ampsweep.text import one_line
from ampsweep.training.components.device import RunDevice, devices_of_ranks

_REQUEST: Final = "request"
_PROCESSES_A_CORE: Final = 8  # more only wait for each other, and a thousand exhaust a machine
_HELD: Final = "machines with devices"
_POLL_S: Final = 0.2


def run_rank(request: RunRequest | None, taken: Sequence[RunDevice] = (), *, send: Send, stop: StopRequest) -> Status:
    """Train as the rank in the environment; rank 0 writes the record and prints. The error of a failed run, here or on
    another rank, is raised after it was recorded. `taken`: devices already held for the ranks of this machine, or a
    single one for all of them; empty: a launcher has started the ranks, and only rank 0 has the request and shares it.
    """
    place = place_in()
    assert place is not None, "the launcher sets the variables of each rank"
    store = store_of(place)
    if request is None:
        request = pickle.loads(base64.b64decode(store.get(_REQUEST)))
    elif not taken:
        store.set(_REQUEST, base64.b64encode(pickle.dumps(replace(request, wandb=None))).decode())
    request = replace(request, is_recorded=place.rank == 0)
    local = place.local_rank if len(taken) > 1 else 0
    own = taken[local] if taken else device_of_rank(request.config.device, place)

    def end(fault: RankFault) -> None:
        if request.is_recorded:
            record_stuck(request, fault.sentence, fault.status, fault.oom)

    own.occupy()
    with joined(place, store, own.device, report=send, end=end) as group:
        if own.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, num_available_cores() // place.local_world_size))
        send_own = send if request.is_recorded else lambda _: None
        try:
            name = request.config.device
            with nullcontext() if taken else held_devices(name, place, store, lambda text: send_own(Say(text)), stop):
                return _run(request, group, own, send_own, stop)
        except BaseException as error:
            if not group.is_broken:
                trace = "".join(traceback.format_exception(error))
                group.cause(error, RankFault(rank=place.rank, status="failed", error=one_line(error), traceback=trace))
            raise


def _run(request: RunRequest, group: Group, own: RunDevice, send: Send, stop: StopRequest) -> Status:
    device = own.device
    parallel = make_parallel(request.config.parallel, group, device)
    count_companions(parallel.gather(os.getpid()) if parallel.local_world_size == parallel.world_size else ())
    limit = MemoryLimit(device, request.config.trainer.memory_limit_gib)
    prepared = PreparedRun(own, limit, UseBeforeRun(device), parallel=parallel)
    return run_prepared(request, prepared, send=send, stop=stop)


def device_of_rank(name: str, place: RankPlace) -> RunDevice:
    """The accelerator of a launcher's local rank, or the CPU; UserError: unknown device, or too few."""
    found = devices_of_ranks(name)
    if found[0].device.type == "cpu":
        return found[0]
    if place.local_rank >= len(found):
        raise UserError(f"device={name}: {place.local_world_size} processes, and {len(found)} devices of one model")
    return found[place.local_rank]


def num_processes(config: ParallelConfig, device: str) -> int:
    """The number of ranks to start, by default one per accelerator; UserError: missing, or too many."""
    found = devices_of_ranks(device)
    if found[0].device.type == "cpu":
        if config.num_processes is None:
            raise UserError(f"parallel={config.strategy} on a CPU needs parallel.num_processes")
        if config.num_processes > (most := _PROCESSES_A_CORE * (cores := num_available_cores())):
            raise UserError(f"parallel.num_processes={config.num_processes}: at most {most} on the {cores} cores here")
        return config.num_processes
    number = config.num_processes or len(found)
    if number > len(found):
        raise UserError(f"parallel.num_processes={number}: device={device} names {len(found)} of one model here")
    return number


@contextmanager
def held_devices(
    name: str, place: RankPlace, store: Store, on_wait: Callable[[str], None], stop: StopRequest
) -> Iterator[None]:
    """Hold the devices of all ranks of this machine; every rank enters it. KeyboardInterrupt: `stop` is requested. The
    first rank of a machine locks them all in a fixed order, which prevents a deadlock of two trainings; launchers on a
    machine (srun's tasks) may share a device. The other ranks poll the store, because a collective would time out."""
    wanted: list[tuple[str, list[DeviceLock]]] = [("", [])] * place.world_size
    dist.all_gather_object(wanted, (socket.gethostname(), _locks(name, place)))
    hosts = [host for host, _ in wanted]
    own = hosts[place.rank]
    with ExitStack() as held:
        if hosts.index(own) == place.rank:
            of_machine = [lock for host, locks in wanted if host == own for lock in locks]
            held.enter_context(held_locks(of_machine, on_wait=on_wait, stop=stop))
            store.add(_HELD, 1)
        while store.add(_HELD, 0) < len({*hosts}):
            if stop.requested:
                raise KeyboardInterrupt
            time.sleep(_POLL_S)
        yield


def _locks(name: str, place: RankPlace) -> list[DeviceLock]:
    """The locks of the devices of a launcher's ranks, on its local rank 0; empty on the others."""
    if place.local_rank > 0:
        return []
    found = devices_of_ranks(name)[: place.local_world_size]
    return [lock_of(str(device)) for device in (found[:1] if found[0].device.type == "cpu" else found)]
