"""Steps that wait: for their data, for Python code of the model's, or for the device, whose results the host reads."""

import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np

from ampsweep.analysis.step_limits import MIN_WAIT_SHARE
from ampsweep.data.base import num_workers
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.patient import Patient
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
_MAX_WORKERS: Final = 8
_EVERY_S: Final = 0.0005
_SWITCH_S: Final = 0.0002
"""Time after which Python code hands over to another thread: the default, 5 ms, would miss shorter loops."""
_MIN_IDLE_PCT: Final = 5.0


class DataBound(SpeedFinding):
    template = "Steps wait for data{at}, which no precision shortens"
    seen = (
        "a step waits {wait_ms} of its {step_ms} for its batch (mean of {num_steps} steps on batches not read before)",
    )
    remedy = "prepare batches once, or have workers read them ahead, as ampsweep.data.map_dataset.MapDataset does"
    remedy_by_overrides = "read batches ahead in more processes"
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
    num_stretches: int


class Synchronizations(SpeedFinding):
    template = "The host waits for the device{inside}{at}"
    seen = ("{num_waits} times in a step; the device has nothing to do for {idle_ms} of {step_ms}",)
    remedy = "leave numbers on the device: no .item(), .cpu(), print or condition on a tensor within the step"
    num_waits: int
    idle_ms: float


_Places = dict[int, Counter[tuple[str | None, str | None]]]
"""Counts of the modules and lines in which the host was seen, by its position in a step."""


@contextmanager
def _sampled(
    position: Callable[[], int | None] = lambda: 0, module: Callable[[], str | None] = lambda: None
) -> Iterator[_Places]:
    """Sample the code that this thread runs inside, every half a millisecond; not where its position is None."""
    seen: _Places = defaultdict(Counter)
    is_over, watched = threading.Event(), threading.get_ident()

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            before = position()
            place = module(), place_of_model_in_thread(watched)
            if before is not None and before == position():
                seen[before][place] += 1

    former = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(former)


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
    with _sampled() as places:
        for _ in range(_MIN_STEPS):
            patient.data.train_batch(patient.data.next_unread)
    workers = num_workers(patient.data.source)
    return [
        DataBound(
            cost_pct=100 * wait_ms / step_ms,
            place=places[0].most_common(1)[0][0][1] if places else None,
            wait_ms=wait_ms,
            step_ms=step_ms,
            num_steps=len(settled),
            num_workers=workers,
            change=Change(overrides=_more_workers(patient, workers)),
        )
    ]


def _more_workers(patient: Patient, workers: int | None) -> list[str]:
    """The override that has more workers read ahead; none where the data cannot have any."""
    if not hasattr(patient.data.source, "num_workers"):
        return []
    wanted = min(max(2 * (workers or 0), os.cpu_count() or 1), _MAX_WORKERS)
    return [f"{'' if 'num_workers' in patient.config.data else '+'}data.num_workers={wanted}"]


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
            seen = places[one.index].most_common(1) if one.index in places else []
            module, line = seen[0][0] if seen else (one.module, one.place)
            found[line or module].append((replace(one, module=module, place=line), one.idle_ms))
    found.pop(None, None)  # between operators of the loss or the update: no code of the model's
    waits = sorted(map(Spot.of, found.values()), key=lambda spot: -spot.cost)
    return [
        measured.finding(HostBound, replace(spot, operator=None), host_ms=spot.cost, num_stretches=len(spot.calls))
        for spot in waits
        if measured.share_pct(spot.cost) >= MIN_COST_PCT
    ]


def _host_places(measured: MeasuredSteps) -> _Places:
    """Take a step and look at where the host stands before each of its operators."""
    position: int | None = 0

    def around(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal position
        position = None
        return operator(*args, **kwargs)

    def on_call(call: Any, *_: object) -> None:
        nonlocal position
        position = call.index + 1

    measured.moments.wait()
    with (
        observe(measured.training.model, on_call, around=around, places=False) as observer,
        _sampled(lambda: position, lambda: observer.module) as places,
    ):
        measured.training.step()
    return places


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
