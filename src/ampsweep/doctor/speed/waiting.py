"""Steps that wait: for data, for Python code of the user, or for the device, whose results the host reads."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np
import torch

from ampsweep.analysis.step_limits import MIN_WAIT_SHARE
from ampsweep.data.base import Data, num_workers, stop_workers
from ampsweep.data.batch_reader import BatchReader
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.hot_spots import hot_spots
from ampsweep.doctor.replay import OutOfTimeError
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.sampled_lines import SampledLine
from ampsweep.doctor.speed.step_times import TimedAgain
from ampsweep.text import plural
from ampsweep.training.components.built import build_data
from ampsweep.user_code import is_own_source

_SETTLING_STEPS: Final = 6  # steps after which data has started as many workers as reading needs
_MIN_STEPS: Final = 4
_MAX_STEPS: Final = 24
_READING_S: Final = 1.0
_TRIAL_S: Final = 3.0
_MIN_GAIN: Final = 0.1
_MOST_WORKERS: Final = 8
_MIN_IDLE_PCT: Final = 5.0
_MIN_HOST_US: Final = 100.0  # of the host for each operator of a line: less may be the framework's


class DataBound(SpeedFinding):
    template = "Steps wait for data, which no precision speeds up"
    seen = ("a step waits {own_ms} of its {step_ms} for its batch (mean of {num_steps} steps on unread batches)",)
    remedy = "prepare batches once, or have workers read them ahead, as ampsweep.data.map_dataset.MapDataset does"
    remedy_by_overrides = "have workers read batches ahead"
    num_steps: int


class HostBound(SpeedFinding):
    template = "Python code{inside}{at} holds up the step"
    seen = ("there the host spends {own_ms} of a step of {step_ms}, while no operator runs",)
    remedy = "write it as operators on tensors, or move it out of the step"


class Synchronizations(SpeedFinding):
    template = "The host waits for the device{inside}{at}"
    seen = ("{num_waits} times in a step; the device has nothing to do for {own_ms} of {step_ms}",)
    remedy = "leave numbers on the device: no .item(), .cpu(), print or condition on a tensor within the step"
    num_waits: int


def data_wait(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Find out if steps wait for data, and note how long they do."""
    examined = measured.examined
    step_ms, wait_ms, num_steps = _reading_ms(measured, examined.data, examined.data.next_unread)
    examined.facts["speed/data_wait_ms"] = measured.wait_ms = wait_ms
    if wait_ms < MIN_WAIT_SHARE * step_ms:
        return
    change, proof = _with_workers(measured, step_ms)
    yield measured.finding(DataBound, None, change, cost_ms=wait_ms, num_steps=num_steps, proof=proof)


def _with_workers(measured: MeasuredSteps, former_ms: float) -> tuple[Change, TimedAgain | None]:
    """Try workers that read ahead, by the data's own setting or else around it."""
    examined, config = measured.examined, measured.examined.config
    own, first = num_workers(examined.data.source), examined.data.next_unread
    number = min(ceil(measured.wait_ms / measured.own_ms) + 1, _MOST_WORKERS)
    workers = plural(number, "worker")
    data: Any = None
    try:
        if own is None and examined.device.type == "cpu":
            words = f"have {workers} read batches ahead, as ampsweep.data.map_dataset.MapDataset does"
            change = Change(words=words)
            data = _ReadAhead(examined.data.source, number, examined.device)
        elif own is not None and own < number:
            change = Change(overrides=[f"{'' if 'num_workers' in config.data else '+'}data.num_workers={number}"])
            data = build_data(replace(config, data=config.data | {"num_workers": number}), examined.device)
        else:
            return Change(), None
        step_ms, *_ = _reading_ms(measured, data, first, settling=2 * number + 2, seconds=_TRIAL_S)
    except (Exception, OutOfTimeError):  # noqa: BLE001  the user's data may not suit workers in any way
        return Change(), None
    finally:
        stop_workers(data)
    former_ms = min(former_ms, _reading_ms(measured, examined.data, examined.data.next_unread)[0])
    if step_ms > (1 - _MIN_GAIN) * former_ms:
        return Change(words=f"prepare batches once: {workers} that read ahead gain nothing here"), None
    return change, TimedAgain(mends=True, former_step_ms=former_ms, step_ms=step_ms)


class _ReadAhead:
    """Batches that workers read ahead, of data whose own class has none."""

    def __init__(self, source: Data, number: int, device: torch.device) -> None:
        self._source, reader = source, BatchReader(self, number, None, device)
        self.train_batch, self.stop_workers = reader, reader.stop_workers

    def __getitem__(self, index: int) -> Any:
        return self._source.train_batch(index)

    def close(self) -> None:
        """Nothing is open that a worker must not share."""


def _reading_ms(
    measured: MeasuredSteps, data: Data, first: int, *, settling: int = _SETTLING_STEPS, seconds: float = _READING_S
) -> tuple[float, float, int]:
    """The mean time of settled steps on unread batches, how long of it they wait for them, and the number of steps."""
    trainer = measured.training.trainer
    trainer.next_batch = first
    end_s, times = monotonic() + seconds, list[tuple[float, float]]()
    while len(times) <= _MIN_STEPS or (monotonic() <= end_s and len(times) < settling + _MAX_STEPS):
        began_s, waited_s = perf_counter(), trainer.instruments.data_wait_s
        measured.training.step(data)
        measured.training.moments.wait()
        times.append((1e3 * (perf_counter() - began_s), 1e3 * (trainer.instruments.data_wait_s - waited_s)))
    settled = times[max(min(settling, len(times) - _MIN_STEPS), 0) :]
    step_ms, wait_ms = map(float, np.mean(settled, axis=0))
    if measured.training.moments.has_queue:  # the device computes while the host waits
        wait_ms = min(wait_ms, max(step_ms - median(measured.times), 0.0))
    return step_ms, wait_ms, len(settled)


def host_code(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Find the modules, or files outside the model, whose own lines take much time while no operator runs."""
    calls = Counter(call.line for call in measured.step)
    groups = defaultdict[tuple[str | None, str], list[tuple[SampledLine, float]]](list)
    for line in measured.lines:
        ms = min(line.share * measured.own_ms, measured.idle_ms)
        if 1e3 * ms > _MIN_HOST_US * calls[line.place] and is_own_source(Path(line.place.file)):
            groups[line.module, line.place.file].append((line, ms))
            measured.host_ms += ms
    for (module, _), lines in groups.items():
        host_ms = sum(ms for _, ms in lines)
        if measured.share_pct(host_ms) >= MIN_COST_PCT:
            modules, place = [] if module is None else [module], lines[0][0].place
            yield measured.finding(HostBound, None, cost_ms=host_ms, modules=modules, place=place)


def synchronizations(measured: MeasuredSteps) -> Iterator[SpeedFinding]:
    """Find the lines where the host waits for the device; on a CPU, where waiting costs nothing, only note them."""
    waits = hot_spots((call, 1.0) for call in measured.step if call.reads_device and call.phase != "update")
    lines = [(spot.place or "".join(spot.modules[:1]), spot) for spot in waits]
    measured.examined.facts["speed/synchronizations"] = [
        f"{place}: {spot.operator} ({len(spot.calls)} in a step)" for place, spot in lines if place
    ]
    idle_ms, has_queue = measured.idle_ms, measured.training.moments.has_queue
    if has_queue and waits and measured.share_pct(idle_ms) >= _MIN_IDLE_PCT:
        num_waits = sum(len(spot.calls) for spot in waits)
        yield measured.finding(Synchronizations, waits[0], cost_ms=idle_ms, num_waits=num_waits)
