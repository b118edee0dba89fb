"""The calibrations of devices: measured once, kept for later predictions, and shown."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec
import torch

from ampsweep.config.errors import UserError
from ampsweep.config.schema import PrecisionConfig
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.predict.device_calibration import calibrate, device_here
from ampsweep.records.files import replacing
from ampsweep.report.document import Document, Prose, Section
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.speed.calibration import Calibration
from ampsweep.speed.devices import Device
from ampsweep.speed.step_time import spread_factor
from ampsweep.text import folder_name, number
from ampsweep.training.components.device import taken_device

_NOISY: Final = 0.35  # a spread


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
    if device.driver_names or (calibration is not None and dtype in calibration.rates):
        return None
    return f"{device.name} was not calibrated in {dtype}"


def timed_device(device: torch.device, precision: PrecisionConfig) -> Device | None:
    """This machine's device, if the time of a step on it can be predicted."""
    here = device_here(device)
    return here if why_not_timed(here, precision) is None else None


def calibrate_and_keep(device: str, stop: StopRequest | None = None) -> tuple[Calibration, Path]:
    """Calibrate the device that `device=` names, when it is free, and keep what was measured."""
    with taken_device(device, stop=stop) as taken:
        found = calibrate(taken.device)
    file = calibration_file(found.device.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as stream:
        stream.write(msgspec.json.encode(found))
    return found, file


def calibration_document(of: Calibration, file: Path) -> Document:
    """What was measured, and what it is good for."""
    rows = [
        *((f"{name}, {'GB/s' if name == 'moved' else 'TFLOP/s'}", rate) for name, rate in of.rates.items()),
        ("host for an operator in forward, µs", of.forward_us),
        ("host for an operator in backward, µs", of.backward_us),
        ("host for a step, µs", of.step_us),
    ]
    columns = (Column("measured"), Column("value", numeric=True))
    table = Table(
        key="calibration",
        columns=columns,
        rows=tuple(Row((Cell(name), Cell(number(value), value))) for name, value in rows),
    )
    limit = number(spread_factor(of.spread), 3)
    noise = "; that is wide: calibrate again when nothing else runs here" if of.spread > _NOISY else ""
    prose = (
        f"{len(of.measured)} operators were timed. Nine of ten other trainings take the predicted time within a factor "
        f"of {limit}{noise}. Later predictions for this device use what was measured, from {file}."
    )
    section = Section(title=f"{of.device.name}: calibrated", kind="card", blocks=(table, Prose(prose)))
    return Document(title="Calibration", sections=(section,), data={"schema": 1, "file": str(file), **asdict(of)})
