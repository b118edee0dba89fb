"""Steps that wait: for data, for Python code of the model, or for the device, whose results the host reads."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from time import monotonic, perf_counter
from typing import Final

import numpy as np

from ampsweep.analysis.step_limits import MIN_WAIT_SHARE
from ampsweep.data.base import num_workers
from ampsweep.doctor.hot_spots import HotSpot, hot_spots
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall
from ampsweep.text import plural

_SETTLING_STEPS: Final = 6  # steps after which data has started as many workers as reading needs
_MIN_STEPS: Final = 4
_MAX_STEPS: Final = 24
_READING_S: Final = 1.0
_MIN_IDLE_PCT: Final = 5.0


class DataBound(SpeedFinding):
    template = "Steps wait for data, which no precision speeds up"
    seen = ("a step waits {wait_ms} of its {step_ms} for its batch (mean of {num_steps} steps on unread batches)",)
    remedy = "prepare batches once, or have workers read them ahead, as ampsweep.data.map_dataset.MapDataset does"
    wait_ms: float
    num_steps: int
    num_workers: int | None

    @property
    def evidence(self) -> list[str]:
        workers = [] if self.num_workers is None else [f"{plural(self.num_workers, 'worker')} read ahead"]
        return [*super().evidence, *workers]


class HostBound(SpeedFinding):
    template = "Python code after {operator}{inside}{at} holds up the step"
    seen = ("the host spends {host_ms} of a step of {step_ms} on it, while no operator runs",)
    remedy = "write it as operators on tensors, or move it out of the step"
    host_ms: float


class Synchronizations(SpeedFinding):
    template = "The host waits for the device{inside}{at}"
    seen = ("{num_waits} times in a step; the device has nothing to do for {idle_ms} of {step_ms}",)
    remedy = "leave numbers on the device: no .item(), .cpu(), print or condition on a tensor within the step"
    num_waits: int
    idle_ms: float


def data_wait(measured: MeasuredSteps) -> Iterator[DataBound]:
    examined, trainer = measured.examined, measured.training.trainer
    trainer.next_batch = examined.data.next_unread
    end_s = monotonic() + _READING_S
    times: list[tuple[float, float]] = []
    for number in range(_SETTLING_STEPS + _MAX_STEPS):
        if examined.seconds_left <= 0 < number or (monotonic() > end_s and number > _MIN_STEPS):
            break
        began_s, waited_s = perf_counter(), trainer.instruments.data_wait_s
        measured.training.step(examined.data)
        measured.moments.wait()
        times.append((1e3 * (perf_counter() - began_s), 1e3 * (trainer.instruments.data_wait_s - waited_s)))
    settled = times[max(min(_SETTLING_STEPS, len(times) - _MIN_STEPS), 0) :]
    step_ms, wait_ms = map(float, np.mean(settled, axis=0))
    if measured.moments.has_queue:  # the device computes while the host waits
        wait_ms = min(wait_ms, max(step_ms - median(measured.times), 0.0))
    examined.facts["speed/data_wait_ms"] = wait_ms
    if wait_ms >= MIN_WAIT_SHARE * step_ms:
        yield DataBound(
            cost_pct=100 * wait_ms / step_ms,
            wait_ms=wait_ms,
            step_ms=step_ms,
            num_steps=len(settled),
            num_workers=num_workers(examined.data.source),
        )


def host_code(measured: MeasuredSteps) -> Iterator[HostBound]:
    idle_ms = measured.step.idle_ms
    if measured.moments.has_queue:  # the device computes what was queued before
        idle_ms = min(idle_ms, max(measured.step_ms - measured.step.operators_ms, 0.0))
    measured.examined.facts["speed/host_ms"] = idle_ms
    found: dict[str, list[tuple[TimedCall, float]]] = defaultdict(list)
    for before, call in pairwise(measured.step.calls):
        if call.idle_ms and before.place is not None:  # not between operators of the loss or the update
            found[before.place].append((before, call.idle_ms))
    for spot in sorted(map(HotSpot.of, found.values()), key=lambda spot: -spot.cost):
        if measured.share_pct(min(idle_ms, spot.cost)) >= MIN_COST_PCT:
            yield measured.finding(HostBound, spot, host_ms=spot.cost)


def synchronizations(measured: MeasuredSteps) -> Iterator[Synchronizations]:
    """Find the lines where the host waits for the device; on a CPU, where waiting costs nothing, only note them."""
    waits = host_waits(measured.step.of_phases("forward", "backward"))
    measured.examined.facts["speed/synchronizations"] = [
        f"{spot.place or spot.modules[0]}: {spot.operator} ({len(spot.calls)} in a step)"
        for spot in waits
        if spot.place is not None or spot.modules
    ]
    idle_ms = max(measured.step_ms - measured.step.operators_ms, 0.0)
    if measured.moments.has_queue and waits and measured.share_pct(idle_ms) >= _MIN_IDLE_PCT:
        num_waits = sum(len(spot.calls) for spot in waits)
        yield measured.finding(Synchronizations, replace(waits[0], cost=idle_ms), num_waits=num_waits, idle_ms=idle_ms)


def host_waits(calls: Sequence[TimedCall]) -> list[HotSpot[TimedCall]]:
    return hot_spots((call, 1.0) for call in calls if call.reads_device)
