"""The device of a run: one that `device=` names and that is free."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from ampsweep.config.errors import UserError
from ampsweep.launch.device_lock import Tell, free_devices
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.environment import device_name


@dataclass(frozen=True)
class RunDevice:
    """A device that a run may train on."""

    device: torch.device

    def __str__(self) -> str:
        """Its name in locks, records and sentences: `cuda:1`, `cpu`."""
        return str(self.device)

    @property
    def name(self) -> str:
        """The model of the device, as runs on it pair."""
        return device_name(self.device)

    def occupy(self) -> None:
        """Keep this process to the device, for good.

        An accelerator becomes torch's current one: what torch looks up without naming a device, as autocast does for
        bfloat16, it looks up there, and no other device gets a context.
        """
        if self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)


_CPU: Final = RunDevice(torch.device("cpu"))


@contextmanager
def taken_device(name: str, tell: Tell | None = None, stop: StopRequest | None = None) -> Iterator[RunDevice]:
    """Hold and occupy the first free one of the devices of this name; `tell` gets sentences for the user.

    Raises:
        UserError: see `run_devices` and `ampsweep.launch.device_lock.free_devices`.
        KeyboardInterrupt: `stop` is requested during the wait.
    """
    found = {str(one): one for one in run_devices(name)}
    with free_devices([*found], on_wait=tell, stop=stop) as (label,):
        found[label].occupy()
        yield found[label]


@contextmanager
def taken_devices(
    name: str, number: int, tell: Tell | None = None, stop: StopRequest | None = None
) -> Iterator[tuple[RunDevice, ...]]:
    """Hold the first free devices of this name for `number` processes of one training, which share a CPU.

    Each process then occupies its own; the rest is as for `taken_device`.
    """
    found = {str(one): one for one in devices_of_ranks(name)}
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
        UserError: torch does not know the device or does not see it here, or the devices are not alike.
    """
    if name == "auto":
        return _alike_accelerators() or (_CPU,)
    kind, colon, places = name.partition(":")
    found = tuple(_named(name, f"{kind}:{place}" if colon else kind) for place in places.split("/"))
    if len(found) > 1 and len(models := {one.name: one for one in found}) > 1:
        told = ", ".join(f"{one} is a {model}" for model, one in models.items())
        raise UserError(f"device={name}: {told}, and runs on different ones do not pair")
    return found


def _named(name: str, one: str) -> RunDevice:
    if one == "cpu":
        return _CPU
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
    return RunDevice(torch.device(device.type, index))


def _alike_accelerators() -> tuple[RunDevice, ...]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ()
    first, *others = (
        RunDevice(torch.device(accelerator.type, index)) for index in range(torch.accelerator.device_count())
    )
    return first, *(other for other in others if other.name == first.name)
