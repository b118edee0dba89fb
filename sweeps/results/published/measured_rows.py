"""The rows of `measurements.csv` with the work of their steps, timed by the speed model a GPU at a time."""

import pickle
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from ampsweep.speed.devices import Device, device_named
from ampsweep.speed.kernel_times import Floats, Parameters, Works, kernel_times
from ampsweep.speed.step_time import StepWork, elapsed_us
from published.errors import Prediction
from published.traces import rows as rows_of_table

_OTHERS: Final = ("ryujaehun", "u39kun", "huggingface/pytorch-image-models", "pytorch/pytorch")
"""Sources of small batches in pure half precision, and of many networks that no speed-up is known of."""
_WEIGHT_OF_OTHERS, _WEIGHT_OF_UNKNOWN, _WEIGHT_OF_DOUBT = 0.25, 0.6, 0.3


@dataclass(frozen=True, eq=False)
class Row:
    """A measurement, and the work of its step."""

    table: dict[str, str]
    device: Device
    work: StepWork

    @cached_property
    def is_known(self) -> bool:
        """Whether it is of a family that the published aims are for, without a doubt about it."""
        table, is_family = self.table, self.table["family"] in ("bert", "gpt", "opt")
        is_family = is_family or table["recipe"].startswith(("resnet50", "suite_resnet50"))
        return is_family and not table["doubt"] and not table["source"].startswith(_OTHERS)

    @property
    def weight(self) -> float:
        of_source = _WEIGHT_OF_OTHERS if self.table["source"].startswith(_OTHERS) else _WEIGHT_OF_UNKNOWN
        return (1.0 if self.is_known else of_source) * (_WEIGHT_OF_DOUBT if self.table["doubt"] else 1.0)

    def launching(self, parameters: Parameters) -> Floats:
        is_own = self.table["source"].startswith("ampsweep")
        return self.work.launching(parameters if is_own else replace(parameters, step_us=parameters.others_step_us))

    @property
    def step_ms(self) -> float:
        return float(self.table["step_ms"])


def load(path: Path) -> list[Row]:
    traces = pickle.loads(path.read_bytes())
    works = {
        (key, compiled): StepWork(own, compiled=compiled)
        for key, own in traces["works"].items()
        for compiled in (False, True)
    }
    return [
        Row(row, device_named(row["gpu"]), works[key, row["compiled"] == "yes"])
        for row, key in zip(rows_of_table(), traces["keys"], strict=True)
    ]


class OnDevice:
    """The rows of a device with TF32 or without, timed together."""

    def __init__(self, device: Device, rows: Sequence[Row], *, tf32: bool) -> None:
        self.device, self.tf32, self.rows = device, tf32, rows
        places: dict[Any, int] = {}
        self.orders = [
            np.array([places.setdefault(w, len(places)) for w in row.work.unique])[row.work.order] for row in rows
        ]
        self._columns = Works([*places])

    def kernels(self, parameters: Parameters) -> list[Floats]:
        of_unique = kernel_times(self._columns, self.device, parameters, tf32=self.tf32)
        return [of_unique[order] for order in self.orders]

    def steps_us(self, parameters: Parameters) -> list[float]:
        return [
            elapsed_us(kernels, row.launching(parameters), row.work.waits)
            for row, kernels in zip(self.rows, self.kernels(parameters), strict=True)
        ]


def on_devices(rows: Iterable[Row]) -> list[OnDevice]:
    of: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    for row in rows:
        of[row.device.name, row.table["precision"] == "tf32"].append(row)
    return [OnDevice(own[0].device, own, tf32=tf32) for (_, tf32), own in of.items()]


def pairs(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Places of rows that differ in precision: (float32, half precision or TF32)."""
    of: dict[tuple[str, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, row in enumerate(rows):
        own = tuple(row.table[name] for name in ("source", "framework", "workload", "gpu", "compiled"))
        of[own][row.table["precision"]].append(place)
    order = {"fp32": 0, "tf32": 1}
    return [
        (first, second)
        for group in of.values()
        for base in order
        for other in group
        if order.get(other, 2) > order[base]
        for first in group.get(base, ())
        for second in group[other]
    ]


def predict(rows: Sequence[Row], parameters: Parameters) -> list[Prediction]:
    found: dict[Row, Prediction] = {}
    for device in on_devices(rows):
        for row, kernels, step_us in zip(
            device.rows, device.kernels(parameters), device.steps_us(parameters), strict=True
        ):
            found[row] = Prediction(row.table, row.is_known, step_us / 1e3, row.work.shares(kernels, step_us))
    return [found[row] for row in rows]
