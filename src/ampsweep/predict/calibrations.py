"""The calibrations of devices: measured once, kept for later predictions, and shown."""

import os
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

from ampsweep.config.errors import UserError
from ampsweep.config.schema import PrecisionConfig
from ampsweep.predict.device_calibration import calibrate, device_here
from ampsweep.records.files import write_atomically
from ampsweep.report.document import Document, Prose, Section
from ampsweep.speed.calibration import Calibration
from ampsweep.speed.devices import Device
from ampsweep.speed.step_time import spread_factor
from ampsweep.text import folder_name, number
from ampsweep.training.components.device import taken_device


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


def calibrate_and_keep(device: str) -> tuple[Calibration, Path]:
    """Calibrate the device that `device=` names, when it is free, and keep what was measured."""
    with taken_device(device) as taken:
        found = calibrate(taken.device)
    file = calibration_file(found.device.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(found).decode())
    return found, file


def calibration_document(found: Calibration, file: Path) -> Document:
    """What was measured, and what it is good for."""
    rates = sorted((str(one.work.dtype), one.work.flops / one.us / 1e6) for one in found.measured if one.work.flops)
    reached = " and ".join(f"{number(rate)} TFLOP/s in {dtype}" for dtype, rate in dict(rates).items())  # the highest
    factor = spread_factor(found.spread)
    noise = "; that is wide: calibrate again when nothing else runs here" if factor > 1.8 else ""
    prose = (
        f"{len(found.measured)} operators were timed; they reach {reached}. Nine of ten other trainings take the "
        f"predicted time within a factor of {number(factor, 3)}{noise}. Later predictions for this device use {file}."
    )
    section = Section(title=f"{found.device.name}: calibrated", kind="card", blocks=(Prose(prose),))
    return Document(title="Calibration", sections=(section,), data={"schema": 1, "file": str(file), **asdict(found)})
