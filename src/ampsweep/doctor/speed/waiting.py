"""Steps that wait: for their data, for Python code of the model's, or for the device, whose results the host reads."""

import os
import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Final

import torch

from ampsweep.analysis.step_limits import MIN_WAIT_SHARE
from ampsweep.data.base import num_workers
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.replay import KeptBatches
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, SpeedFinding, Spot, spots
from ampsweep.doctor.speed.timed_calls import TimedCall
from ampsweep.own_code import is_own_source, place_of_model_in_thread
from ampsweep.text import plural
from ampsweep.tracing.calls import observe

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
    lines: list[str]
    """Those that torch warns of."""

    @property
    def evidence(self) -> list[str]:
        return [*super().evidence, *([self.told("torch warns of {lines}")] if self.lines else [])]


@dataclass(frozen=True)
class HostPlace:
    """Code that the host runs."""

    module: str | None
    line: str | None
    """As of `place_of_caller`."""


@dataclass
class HostSamples:
    """Counts of the places at which the host stood, by the number of operators that were over."""

    position: int = 0
    """Operators that are over."""
    in_operator: bool = False
    """The host runs an operator now, or code of ours: such moments do not count."""
    seen: dict[int, Counter[HostPlace]] = field(default_factory=dict)

    def most_common(self, position: int) -> HostPlace | None:
        """The place at which the host stood most often after so many operators; None: it was not seen."""
        found = self.seen.get(position)
        return found.most_common(1)[0][0] if found else None


@contextmanager
def sampled(module: Callable[[], str | None] = lambda: None) -> Iterator[HostSamples]:
    """Sample the code that this thread runs inside, every half a millisecond.

    Args:
        module: tells the name of the module that runs now.
    """
    samples, is_over, watched = HostSamples(), threading.Event(), threading.get_ident()

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            position = samples.position
            place = HostPlace(module(), place_of_model_in_thread(watched))
            if not samples.in_operator and samples.position == position:
                samples.seen.setdefault(position, Counter())[place] += 1

    former = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(former)


def data_wait(measured: MeasuredSteps) -> list[DataBound]:
    """Find out whether steps wait for batches that nobody has read before."""
    patient, training, moments = measured.patient, measured.training, measured.moments
    data = _WatchedData(patient.data)
    waits, steps = list[float](), list[float]()
    end_s = monotonic() + min(_READING_S, max(patient.seconds_left, 0.0))
    with sampled() as data.samples, training.on(data, patient.data.next_unread):
        for number in range(_SETTLING_STEPS + _MAX_STEPS):
            began_s, waited_s = perf_counter(), training.data_wait_s
            training.step()
            moments.wait()
            ms, wait_ms = 1e3 * (perf_counter() - began_s), 1e3 * (training.data_wait_s - waited_s)
            if number >= _SETTLING_STEPS or monotonic() > end_s:
                steps.append(ms)
                waits.append(wait_ms)
            if monotonic() > end_s and (len(steps) >= _MIN_STEPS or patient.seconds_left <= 0):
                break
    step_ms, wait_ms = sum(steps) / len(steps), sum(waits) / len(waits)
    if moments.has_queue:  # the device computes while the host waits
        wait_ms = min(wait_ms, max(step_ms - measured.times.median_ms, 0.0))
    patient.facts["speed/data_wait_ms"] = wait_ms
    if wait_ms < MIN_WAIT_SHARE * step_ms:
        return []
    workers = num_workers(patient.data.source)
    place = data.samples.most_common(_WatchedData.READING)
    return [
        DataBound(
            cost_pct=100 * wait_ms / step_ms,
            place=None if place is None else place.line,
            wait_ms=wait_ms,
            step_ms=step_ms,
            num_steps=len(steps),
            num_workers=workers,
            change=Change(overrides=_more_workers(patient.data, patient.config.data, workers)),
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
    samples = _host_samples(measured)
    found: dict[str | None, list[tuple[HostPlace, float]]] = defaultdict(list)
    for one in measured.step.calls:
        if one.idle_ms:
            place = samples.most_common(one.call.index) or HostPlace(one.call.module, one.call.place)
            found[place.line or place.module].append((place, one.idle_ms))
    found.pop(None, None)  # between operators of the loss or the update: no code of the model's
    costs = [(sum(ms for _, ms in stretches), stretches) for stretches in found.values()]
    return [
        _host_finding(measured, here_ms, stretches)
        for here_ms, stretches in sorted(costs, key=lambda cost: -cost[0])
        if measured.share_pct(here_ms) >= MIN_COST_PCT
    ]


def _host_finding(measured: MeasuredSteps, here_ms: float, stretches: list[tuple[HostPlace, float]]) -> HostBound:
    modules: dict[str, float] = defaultdict(float)
    for place, ms in stretches:
        if place.module is not None:
            modules[place.module] += ms
    return HostBound(
        cost_pct=measured.share_pct(here_ms),
        modules=sorted(modules, key=lambda name: -modules[name]),
        place=stretches[0][0].line,
        host_ms=here_ms,
        step_ms=measured.step_ms,
        num_stretches=len(stretches),
    )


def _host_samples(measured: MeasuredSteps) -> HostSamples:
    """Take a step and look at where the host stands between its operators."""
    training, moments = measured.training, measured.moments

    def count(*_: object) -> None:
        samples.position += 1
        samples.in_operator = False

    def around(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        samples.in_operator = True
        return operator(*args, **kwargs)

    moments.wait()
    with (
        observe(training.model, count, around=around, places=False) as observer,
        sampled(lambda: observer.module) as samples,
    ):
        training.step()
    return samples


class _WatchedData:
    """Data that tells samples when it reads."""

    READING: Final = 1

    def __init__(self, data: KeptBatches) -> None:
        self._data, self.samples = data, HostSamples()

    def train_batch(self, index: int) -> Any:
        self.samples.position = self.READING
        try:
            return self._data.train_batch(index)
        finally:
            self.samples.position = 0

    def val_batches(self) -> Iterator[Any]:
        yield from self._data.val_batches()


def _more_workers(data: KeptBatches, config: Any, workers: int | None) -> list[str]:
    """The override that has more workers read ahead; none where the data cannot have any."""
    if not hasattr(data.source, "num_workers"):
        return []
    wanted = min(max(2 * (workers or 0), os.cpu_count() or 1), _MAX_WORKERS)
    return [f"{'' if 'num_workers' in config else '+'}data.num_workers={wanted}"]


def synchronizations(measured: MeasuredSteps) -> list[Synchronizations]:
    """Find the lines at which the host waits for the device; on a CPU, where they cost nothing, they are facts only."""
    waits = host_waits(measured.step.of_phases("forward", "backward"))
    measured.patient.facts["speed/synchronizations"] = [
        f"{spot.place or spot.modules[0]}: {spot.operator} ({len(spot.calls)} in a step)"
        for spot in waits
        if spot.place is not None or spot.modules
    ]
    if not measured.moments.has_queue:
        return []
    warned = _warned_lines(measured) if measured.patient.device.type == "cuda" else []
    idle_ms = max(measured.step_ms - measured.step.operators_ms, 0.0)
    if measured.share_pct(idle_ms) < _MIN_IDLE_PCT or not (waits or warned):
        return []
    place = waits[0].place if waits else warned[0]
    return [
        Synchronizations(
            cost_pct=measured.share_pct(idle_ms),
            modules=waits[0].modules if waits else [],
            operator=waits[0].operator if waits else None,
            place=place,
            num_waits=max(sum(len(spot.calls) for spot in waits), len(warned)),
            idle_ms=idle_ms,
            step_ms=measured.step_ms,
            lines=warned,
        )
    ]


def host_waits(calls: Sequence[TimedCall]) -> list[Spot]:
    """The spots at which the host reads what a device computes, the most frequent one first."""
    return spots((one, 1.0) for one in calls if one.reads_device)


def _warned_lines(measured: MeasuredSteps) -> list[str]:
    """The lines of the user's that torch warns of as synchronizing, the most frequent one first."""
    former = torch.cuda.get_sync_debug_mode()
    measured.moments.wait()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            measured.training.step()
        finally:
            torch.cuda.set_sync_debug_mode(former)
    lines = Counter(
        f"{Path(one.filename).name}, line {one.lineno}" for one in said if is_own_source(Path(one.filename))
    )
    return [line for line, _ in lines.most_common()]
