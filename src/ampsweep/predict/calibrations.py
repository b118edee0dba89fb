"""The calibrations of devices, kept for later predictions."""

import os
from pathlib import Path

import msgspec
import torch

from ampsweep.config.errors import UserError
from ampsweep.config.schema import PrecisionConfig
from ampsweep.monitors.environment import device_name
from ampsweep.observe.memory_limit import memory_bytes
from ampsweep.speed.calibration import Calibration
from ampsweep.speed.devices import Device, device_of_driver
from ampsweep.text import GIB, folder_name, plural


def calibration_file(device_name: str) -> Path:
    """Where the calibration of a device is kept; its name is that of `speed.devices`, or a CPU's with its threads."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ampsweep" / "calibrations" / f"{folder_name(device_name)}.json"


def kept_calibration(device_name: str) -> Calibration | None:
    """The calibration of a device; None if it was not calibrated. UserError if its file cannot be read."""
    file = calibration_file(device_name)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{file}: {error}; `ampsweep predict --calibrate` writes it anew") from error


def device_here(device: torch.device) -> Device:
    """The device of the table, or one that only its calibration describes."""
    name, threads = device_name(device), torch.get_num_threads()
    if (known := device_of_driver(name)) is not None:
        return known
    name = f"{name}, {plural(threads, 'thread')}" if device.type == "cpu" else name
    memory_gib = (memory_bytes(device, None) or 0) / GIB
    unknown = (0.0, 0.0, 0.0, 1.0, 0.0, None, 0.0, None, None, "measured")
    return Device(name, (), device.type, (0, 0), threads, 0.0, memory_gib, *unknown)


def why_not_timed(device: Device, precision: PrecisionConfig) -> str | None:
    """A sentence on why the time of a step on the device cannot be predicted; None if it can."""
    dtype, calibration = precision.dtype if precision.autocast else precision.parameters, kept_calibration(device.name)
    if device.driver_names or (calibration and dtype in {one.work.dtype for one in calibration.measured}):
        return None
    return f"{device.name} was not calibrated in {dtype}"


def timed_device(device: torch.device, precision: PrecisionConfig) -> Device | None:
    """This machine's device, if the time of a step on it can be predicted."""
    here = device_here(device)
    return here if why_not_timed(here, precision) is None else None
