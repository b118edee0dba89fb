"""Devices of runs: finding those that `device=` names, and acquiring a free one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ampsweep.config.errors import UserError, allowed
from ampsweep.launch.device_lock import Say, free_devices
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.monitors.environment import device_name


@dataclass(frozen=True)
class RunDevice:
    """A device that a run may train on. Its string (`cuda:1`, `cpu`) is its name in locks, records and messages."""

    device: torch.device

    def __str__(self) -> str:
        return str(self.device)

    @property
    def name(self) -> str:
        """The model of the device; only runs on the same model are paired."""
        return device_name(self.device)

    def occupy(self) -> None:
        """Make an accelerator torch's current device, so that lookups without a device give no other a context."""
        if self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)


@contextmanager
def taken_device(name: str, tell: Say | None = None, stop: StopRequest | None = None) -> Iterator[RunDevice]:
    """Lock and occupy the first free device of this name; `tell` receives messages for the user.

    Raises a KeyboardInterrupt if `stop` is requested during the wait; otherwise see `run_devices` and `free_devices`.
    """
    found = {str(device): device for device in run_devices(name)}
    with free_devices([*found], on_wait=tell, stop=stop) as (label,):
        found[label].occupy()
        yield found[label]


@contextmanager
def taken_devices(
    name: str, number: int, tell: Say | None = None, stop: StopRequest | None = None
) -> Iterator[tuple[RunDevice, ...]]:
    """Lock the first free devices of this name for `number` processes, which share a CPU and occupy their devices."""
    found = {str(device): device for device in devices_of_ranks(name)}
    needed = 1 if next(iter(found.values())).device.type == "cpu" else number
    if needed > len(found):
        raise UserError(f"device={name}: {number} processes need one each, and there are {len(found)} of one model")
    with free_devices([*found], needed, tell, stop) as labels:
        yield tuple(found[label] for label in labels)


def devices_of_ranks(name: str) -> tuple[RunDevice, ...]:
    """Return the devices of this name for processes that take one each: `cuda` stands for all like the first."""
    accelerator = _accelerator()
    return run_devices("auto" if accelerator is not None and name == accelerator.type else name)


def resolve_device(name: str) -> torch.device:
    """Return the first device of this name (see `run_devices`), occupied."""
    first = run_devices(name)[0]
    first.occupy()
    return first.device


def run_devices(name: str) -> tuple[RunDevice, ...]:
    """Return the devices of this name in the order in which runs take them; all are of the same model.

    `auto` means all accelerators of the same model as the first, or else the CPU. No device gets a context. An
    accelerator always has an index. Raises a UserError for unknown or absent devices, or different models.
    """
    if name == "auto":
        if (accelerator := _accelerator()) is None:
            return (RunDevice(torch.device("cpu")),)
        indices = range(torch.accelerator.device_count())
        first, *others = (RunDevice(torch.device(accelerator.type, index)) for index in indices)
        return first, *(other for other in others if other.name == first.name)
    kind, colon, places = name.partition(":")
    found = tuple(_named(name, f"{kind}:{place}" if colon else kind) for place in places.split("/"))
    if len(found) > 1 and len(models := {device.name: device for device in found}) > 1:
        text = ", ".join(f"{device} is a {model}" for model, device in models.items())
        raise UserError(f"device={name}: {text}, and runs on different models are not paired")
    return found


def _accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _named(name: str, choice: str) -> RunDevice:
    try:
        device = torch.device(choice)
    except RuntimeError as error:
        kinds = allowed(choice.partition(":")[0], ("auto", "cpu", "cuda", "mps"))
        raise UserError(f"device={name}: torch knows no such device; {kinds}") from error
    if choice == "cpu":
        return RunDevice(device)
    accelerator = _accelerator()
    if accelerator is None or accelerator.type != device.type:
        raise UserError(f"device={name}: this machine has {'no accelerator' if accelerator is None else accelerator}")
    index = device.index or 0
    if index >= torch.accelerator.device_count():
        raise UserError(f"device={name}: this machine has {torch.accelerator.device_count()} of them, from 0")
    return RunDevice(torch.device(device.type, index))
