"""Steps that wait: for their data, for Python code of the model's, or for the device, whose results the host reads."""

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np

from ampsweep.analysis.step_limits import MIN_WAIT_SHARE
from ampsweep.data.base import num_workers
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall
from ampsweep.doctor.spot import Spot, spots
from ampsweep.observe.calls import observe
from ampsweep.own_code import place_of_model_in_thread
from ampsweep.text import plural

_SETTLING_STEPS: Final = 6
"""Steps after which data that chooses its workers by the time that reading takes has chosen and started them."""
_MIN_STEPS: Final = 4
_MAX_STEPS: Final = 24
_READING_S: Final = 1.0
_SAMPLED_STEPS: Final = 4
_EVERY_S: Final = 0.0005
_SWITCH_S: Final = 0.0002
"""Time after which Python code hands over to another thread: the default, 5 ms, would miss shorter loops."""
_MIN_IDLE_PCT: Final = 5.0


class DataBound(SpeedFinding):
    template = "Steps wait for data, which no precision shortens"
    seen = (
        "a step waits {wait_ms} of its {step_ms} for its batch (mean of {num_steps} steps on batches not read before)",
    )
    remedy = "prepare batches once, or have workers read them ahead, as ampsweep.data.map_dataset.MapDataset does"
    wait_ms: float
    num_steps: int
    num_workers: int | None

    @property
    def evidence(self) -> list[str]:
        workers = [] if self.num_workers is None else [f"{plural(self.num_workers, 'worker')} read ahead"]
        return [*super().evidence, *workers]


class HostBound(SpeedFinding):
    template = "Python code{inside}{at} holds up the step"
    seen = ("the host spends {host_ms} of a step of {step_ms} on it, while no operator runs",)
    remedy = "write it as operators on tensors, or take it out of the step"
    host_ms: float


class Synchronizations(SpeedFinding):
    template = "The host waits for the device{inside}{at}"
    seen = ("{num_waits} times in a step; the device has nothing to do for {idle_ms} of {step_ms}",)
    remedy = "leave numbers on the device: no .item(), .cpu(), print or condition on a tensor within the step"
    num_waits: int
    idle_ms: float


_Places = dict[int, Counter[tuple[str | None, str | None]]]
"""Counts of the modules and lines in which the host was seen, by its position in a step."""


def data_wait(measured: MeasuredSteps) -> list[DataBound]:
    """Find out whether steps wait for batches that were not read before."""
    patient, trainer = measured.patient, measured.training.trainer
    trainer.next_batch = patient.data.next_unread
    end_s = monotonic() + _READING_S
    times: list[tuple[float, float]] = []
    for number in range(_SETTLING_STEPS + _MAX_STEPS):
        if patient.seconds_left <= 0 < number or (monotonic() > end_s and number > _MIN_STEPS):
            break
        began_s, waited_s = perf_counter(), trainer.instruments.data_wait_s
        measured.training.step(patient.data)
        measured.moments.wait()
        times.append((1e3 * (perf_counter() - began_s), 1e3 * (trainer.instruments.data_wait_s - waited_s)))
    settled = times[max(min(_SETTLING_STEPS, len(times) - _MIN_STEPS), 0) :]
    step_ms, wait_ms = map(float, np.mean(settled, axis=0))
    if measured.moments.has_queue:  # the device computes while the host waits
        wait_ms = min(wait_ms, max(step_ms - measured.times.median_ms, 0.0))
    patient.facts["speed/data_wait_ms"] = wait_ms
    if wait_ms < MIN_WAIT_SHARE * step_ms:
        return []
    return [
        DataBound(
            cost_pct=100 * wait_ms / step_ms,
            wait_ms=wait_ms,
            step_ms=step_ms,
            num_steps=len(settled),
            num_workers=num_workers(patient.data.source),
        )
    ]


def host_code(measured: MeasuredSteps) -> list[HostBound]:
    """Find out whether the host runs code of the model's for long, between two operators."""
    idle_ms = measured.step.idle_ms
    if measured.moments.has_queue:  # the device computes what it was given before
        idle_ms = min(idle_ms, max(measured.step_ms - measured.step.operators_ms, 0.0))
    measured.patient.facts["speed/host_ms"] = idle_ms
    if measured.share_pct(idle_ms) < MIN_COST_PCT:
        return []
    places = _host_places(measured)
    found: dict[str | None, list[tuple[TimedCall, float]]] = defaultdict(list)
    for one in measured.step.calls:
        if one.idle_ms:
            most = places[one.index].most_common(1) if one.index in places else []
            module, line = most[0][0] if most else (one.module, one.place)
            found[line or module].append((replace(one, module=module, place=line), one.idle_ms))
    found.pop(None, None)  # between operators of the loss or the update: no code of the model's
    waits = sorted(map(Spot.of, found.values()), key=lambda spot: -spot.cost)
    return [
        measured.finding(HostBound, replace(spot, operator=None), host_ms=spot.cost)
        for spot in waits
        if measured.share_pct(spot.cost) >= MIN_COST_PCT
    ]


def _host_places(measured: MeasuredSteps) -> _Places:
    """Take some steps and sample where the host stands before each of their operators, every half a millisecond."""
    position: int | None = None
    num_calls = 0
    seen: _Places = defaultdict(Counter)
    is_over, watched = threading.Event(), threading.get_ident()

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            before = position
            place = observer.module, place_of_model_in_thread(watched)
            if before is not None and before == position:
                seen[before][place] += 1

    def around(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal position
        position = None
        return operator(*args, **kwargs)

    def on_call(*_: object) -> None:
        nonlocal position, num_calls
        num_calls += 1
        position = num_calls

    former = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    thread = threading.Thread(target=watch, daemon=True)
    with observe(measured.training.model, on_call, around=around, places=False) as observer:
        thread.start()
        try:
            for _ in range(_SAMPLED_STEPS):
                measured.moments.wait()
                position = num_calls = 0
                measured.training.step()
                position = None
        finally:
            is_over.set()
            thread.join()
            sys.setswitchinterval(former)
    return seen


def synchronizations(measured: MeasuredSteps) -> list[Synchronizations]:
    """Find the lines at which the host waits for the device; on a CPU, where they cost nothing, they are facts only."""
    waits = host_waits(measured.step.of_phases("forward", "backward"))
    measured.patient.facts["speed/synchronizations"] = [
        f"{spot.place or spot.modules[0]}: {spot.operator} ({len(spot.calls)} in a step)"
        for spot in waits
        if spot.place is not None or spot.modules
    ]
    idle_ms = max(measured.step_ms - measured.step.operators_ms, 0.0)
    if not measured.moments.has_queue or not waits or measured.share_pct(idle_ms) < _MIN_IDLE_PCT:
        return []
    num_waits = sum(len(spot.calls) for spot in waits)
    return [measured.finding(Synchronizations, replace(waits[0], cost=idle_ms), num_waits=num_waits, idle_ms=idle_ms)]


def host_waits(calls: Sequence[TimedCall]) -> list[Spot[TimedCall]]:
    """The spots at which the host reads what a device computes, the most frequent one first."""
    return spots((one, 1.0) for one in calls if one.reads_device)
