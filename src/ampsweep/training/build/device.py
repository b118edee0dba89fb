"""The device of a run: one that `device=` names and that is free, with the cores of a CPU that the run is kept to."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

import torch

from ampsweep.config.device_names import choices, cores_of
from ampsweep.config.errors import UserError
from ampsweep.cores import num_physical, siblings, with_siblings, written_cores
from ampsweep.launch.device_lock import Tell, free_devices
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.environment import device_name
from ampsweep.monitors.nvml import partition_names
from ampsweep.text import plural

_BINDING: Final = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Variables by which OpenMP binds threads to cores that it chooses as torch is imported, whatever cores a run has."""


@dataclass(frozen=True)
class RunDevice:
    """A device that a run may train on: one of torch's and, of a CPU, the cores that the run is kept to."""

    label: str
    """Its name in locks, records and sentences: `cuda:1`, `cpu`, `cpu:0-3`."""
    device: torch.device
    cores: frozenset[int] | None = None
    """None: all those of the process."""
    partition: str | None = None
    """The entry of CUDA_VISIBLE_DEVICES that must be its only one, for CUDA shows a process one partition (MIG)."""

    def __str__(self) -> str:
        return self.label

    @property
    def name(self) -> str:
        """The model of the device, as runs on it pair: with the number of cores where the run is kept to some."""
        if self.cores is None:
            return device_name(self.device)
        return f"{device_name(self.device)}, {len(self.cores)} core{'s' if len(self.cores) > 1 else ''}"

    @contextmanager
    def occupied(self, num_processes: int = 1) -> Iterator[None]:
        """Keep this process to the device, and what it starts meanwhile; of a CPU's cores each of `num_processes`,
        those of one training, has its share of threads.

        An accelerator becomes torch's current one: what torch looks up without naming a device, as autocast does for
        bfloat16, it looks up there, and no other device gets a context.

        Raises:
            UserError: torch does not see a partition.
        """
        with nullcontext() if self.cores is None else _kept_to(self.cores, num_processes):
            if self.partition is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = self.partition  # for good: CUDA reads it once
                if not torch.accelerator.is_available():
                    raise UserError(f"device={self}: CUDA does not see {self.partition}")
            if self.device.index is not None:
                torch.accelerator.set_device_index(self.device.index)
            yield


@contextmanager
def taken_device(name: str, tell: Tell | None = None, stop: StopRequest | None = None) -> Iterator[RunDevice]:
    """Hold and occupy the first free one of the devices of this name; `tell` gets sentences for the user.

    Raises:
        UserError: see `run_devices` and `ampsweep.launch.device_lock.free_devices`.
        KeyboardInterrupt: `stop` is requested during the wait.
    """
    found = {one.label: one for one in run_devices(name)}
    with free_devices([*found], on_wait=tell, stop=stop) as (label,), (taken := found[label]).occupied():
        if tell is not None and taken.cores is not None and torch.get_num_threads() < num_physical(taken.cores):
            threads = f"{plural(torch.get_num_threads(), 'thread')} on {num_physical(taken.cores)} physical cores"
            tell(f"{taken}: torch has {threads}, as OMP_NUM_THREADS or MKL_NUM_THREADS says")
        yield taken


@contextmanager
def taken_devices(
    name: str, number: int, tell: Tell | None = None, stop: StopRequest | None = None
) -> Iterator[tuple[RunDevice, ...]]:
    """Hold the first free devices of this name for `number` processes of one training, which share a CPU.

    Each process then occupies its own; the rest is as for `taken_device`.
    """
    found = {one.label: one for one in devices_of_ranks(name)}
    needed = 1 if next(iter(found.values())).device.type == "cpu" else number
    if needed > len(found):
        raise UserError(f"device={name}: {number} processes need one each, and there are {len(found)} of one model")
    with free_devices([*found], needed, tell, stop) as labels:
        yield tuple(found[label] for label in labels)


def devices_of_ranks(name: str) -> tuple[RunDevice, ...]:
    """The devices of this name for processes that take one each: `cuda` names all like the first."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return run_devices("auto" if accelerator is not None and name == accelerator.type else name)


def resolve_device(name: str) -> torch.device:
    """The first device of this name; see `run_devices`. An accelerator becomes torch's current one."""
    device = run_devices(name)[0].device
    if device.index is not None:
        torch.accelerator.set_device_index(device.index)
    return device


def run_devices(name: str) -> tuple[RunDevice, ...]:
    """The devices of this name, in the order in which runs take them: all of one model, so that runs on them pair.

    `auto` means the accelerators that torch reports and that are like the first of them, else the CPU. No device gets a
    context. An accelerator always has its index.

    Raises:
        UserError: torch does not know the device or does not see it here, the process may not use the cores, or the
            devices are not alike.
    """
    if name == "auto":
        return _partitions(os.environ) or _alike_accelerators() or (RunDevice("cpu", torch.device("cpu")),)
    found = tuple(_named(name, one) for one in choices(name))
    if found[0].cores is not None:
        _check_cores(name, [one.cores or frozenset() for one in found])
    elif len(found) > 1 and len(models := {one.name: one for one in found}) > 1:
        told = ", ".join(f"{one} is a {model}" for model, one in models.items())
        raise UserError(f"device={name}: {told}, and runs on different ones do not pair")
    return found


def _named(name: str, one: str) -> RunDevice:
    kind = one.partition(":")[0]
    if kind == "cpu":
        cores = cores_of(one)
        return RunDevice("cpu" if cores is None else f"cpu:{written_cores(cores)}", torch.device("cpu"), cores)
    try:
        device = torch.device(one)
    except RuntimeError as error:
        raise UserError(f"device={name}: torch knows no such device") from error
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != device.type:
        raise UserError(f"device={name}: this machine has {'no accelerator' if accelerator is None else accelerator}")
    index = device.index or 0
    if index >= torch.accelerator.device_count():
        raise UserError(f"device={name}: this machine has {torch.accelerator.device_count()} of them, from 0")
    return _accelerator(device.type, index)


def _accelerator(kind: str, index: int) -> RunDevice:
    return RunDevice(f"{kind}:{index}", torch.device(kind, index))


def _alike_accelerators() -> tuple[RunDevice, ...]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ()
    first, *others = (_accelerator(accelerator.type, index) for index in range(torch.accelerator.device_count()))
    return first, *(other for other in others if other.name == first.name)


def _partitions(environment: Mapping[str, str]) -> tuple[RunDevice, ...]:
    """The partitions that CUDA_VISIBLE_DEVICES lists, if there are several, and that are like the first of them.

    CUDA would show a process the first alone, and does so once it is asked: nothing here asks it.
    """
    entries = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if len(entries) < 2 or torch.version.cuda is None or not all(entry.startswith("MIG-") for entry in entries):
        return ()
    models = partition_names(entries)
    return tuple(
        RunDevice(f"cuda:{index}", torch.device("cuda", 0), partition=entry)
        for index, (entry, model) in enumerate(zip(entries, models, strict=True))
        if index == 0 or (model is not None and model == models[0])
    )


def _check_cores(name: str, sets: Sequence[frozenset[int]]) -> None:
    if sys.platform != "linux":
        raise UserError(f"device={name}: only Linux keeps a process to some cores; use device=cpu")
    binding = [f"{key}={os.environ[key]}" for key in _BINDING if os.environ.get(key, "false").lower() != "false"]
    if binding:
        raise UserError(f"device={name}: {binding[0]} has OpenMP bind threads to cores of its own choice; unset it")
    allowed = frozenset(os.sched_getaffinity(0))
    if missing := frozenset().union(*sets) - allowed:
        here = f"this process may run on the cores {written_cores(allowed)}"
        raise UserError(f"device={name}: {here}, not on {written_cores(missing)}")
    for one, other in combinations(sets, 2):
        if shared := with_siblings(one) & other:
            core = min(shared)
            both = f"{min(siblings(core) & one)} and {core}"
            raise UserError(f"device={name}: {both} are threads of one physical core, and their runs would share it")
    if len({num_physical(one) for one in sets}) > 1:
        raise UserError(f"device={name}: its sets must have the same number of physical cores, so that runs pair")


@contextmanager
def _kept_to(cores: frozenset[int], num_processes: int) -> Iterator[None]:
    """Keep this process, and what it starts meanwhile, to `cores`, which it shares with others of its training.

    torch has a thread for each physical core of its share, and fewer where OMP_NUM_THREADS says so.
    """
    assert sys.platform == "linux"
    before, num_threads = frozenset(os.sched_getaffinity(0)), torch.get_num_threads()
    with ExitStack() as restored:
        restored.callback(_move_threads, before)
        _move_threads(cores)
        if num_threads > (fitting := max(1, num_physical(cores) // num_processes)):
            restored.callback(torch.set_num_threads, num_threads)
            torch.set_num_threads(fitting)
        yield


def _move_threads(cores: frozenset[int]) -> None:
    """Move all threads of this process to `cores`; a thread starts with the cores of the one that starts it."""
    assert sys.platform == "linux"
    moved: set[int] = set()
    while left := {int(thread.name) for thread in Path("/proc/self/task").iterdir()} - moved:
        for thread in left:
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(thread, cores)
        moved |= left
