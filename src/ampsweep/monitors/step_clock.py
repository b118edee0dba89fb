"""Clocks for optimizer steps and the time between them, on the device or the host, and for host time."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

_QUEUED: Final = ("cuda", "xpu", "mps")
"""Devices with an asynchronous queue and events that record times."""
_MAX_LAG_SHARE: Final = 0.05
"""Largest lag of a device that waits for its host, as a share of the step: the last kernels' time. A busy device lags
by all kernels in its queue: about a thousand, or a whole step with fewer."""

Waits = Sequence[tuple[Any, Any]]
"""Pairs of moments of a timer."""


class StepClock:
    """Times optimizer steps between `begin` and `end`, and the time between two steps; throughput includes both. On
    cuda, xpu and mps it records events in the device's queue, and nothing waits until `windows` or `summary` reads
    them; elsewhere it takes times on the host. Waiting for data is host time everywhere. A step after a wait for the
    device finds an empty queue and waits for the host's first launches, unlike the steps of a bare loop: the summary's
    quantiles exclude such steps, unless they are the majority. They also exclude warm-up, the steps before `end_warmup`
    and the marked steps."""

    def __init__(self, device: torch.device, samples_per_step: int | None, tokens_per_step: int | None) -> None:
        self._timer = Moments(device)
        work = {"perf/samples_per_sec": samples_per_step, "perf/tokens_per_sec": tokens_per_step}
        self._work = {key: number for key, number in work.items() if number is not None}
        self.now = self._timer.now
        """Takes a moment, seconds on the host or an event in the device's queue, without waiting."""
        self.sampling = 16 if self._timer.has_queue else 1
        """Steps between two samples of the suite's own time: an event costs as much as a kernel."""
        self._start: Any = None
        self._since: Any = None  # the end of the last step; None before the first
        self._own: list[tuple[Any, Any, int]] = []  # the suite's own time in the current step: two moments, weight
        self._is_warm = False
        self._is_queue_empty = False  # True if the current or next step begins with an empty queue
        self._unread: list[_Step] = []
        self._window = _Times()
        self._windows: list[_Times] = []
        self._steady = _Times()
        # Of steps after warm-up: times without a wait before, host times after a wait, and lags of the device.
        self._flowing_ms, self._launch_ms, self._lag_ms = array("d"), array("d"), array("d")

    def begin(self) -> None:
        """Begin a step; call it before fetching the step's data."""
        self._start = self.now()

    def end(self, data_wait_s: float = 0.0, waits: Waits | None = None) -> None:
        """End the step; the host waited `data_wait_s` for its data, and the device for other ranks during `waits`."""
        assert self._start is not None, "end before begin"
        end, is_after_wait = self.now(), self._is_queue_empty
        step = _Step(self._start, end, data_wait_s, waits, self._since, self._own, self._is_warm, is_after_wait)
        self._unread.append(step)
        self._start, self._since, self._own, self._is_queue_empty = None, end, [], False

    def own(self, since: Any, weight: int = 1) -> None:
        """Count the current step's time since this moment as the suite's own, for `weight` steps."""
        if self._start is not None:
            self._own.append((since, self.now(), weight))

    def restart(self) -> None:
        """Exclude the time since the latest step."""
        self._since = self.now()

    def wait(self) -> None:
        """Wait until the device has finished the latest step."""
        if self._timer.has_queue and self._unread and not self._is_queue_empty:
            self._unread[-1].lag_s = self._timer.lag_s(self._unread[-1].end)
            self._is_queue_empty = True

    def end_warmup(self) -> None:
        self._is_warm = True

    def mark_warmup(self, num_steps: int = 1) -> None:
        """Mark the latest steps as warm-up (a compilation, a growing allocator); call it before they are read."""
        assert num_steps <= len(self._unread), "steps that were read already"
        for step in self._unread[len(self._unread) - num_steps :]:
            step.is_steady = False

    def mark_traced(self) -> None:
        """Exclude the latest step, which was traced, from all figures; call it before it is read."""
        assert self._unread, "no step since the last reading"
        self._unread[-1].is_traced = True

    def cut(self) -> None:
        """End a window of the steps since the last cut."""
        if self._unread:
            self._unread[-1].num_cuts += 1
        else:
            self._end_window()

    def windows(self) -> list[dict[str, float]]:
        """Mean step time and throughput of each window ended since the last call; empty without a step."""
        self._read()
        windows, self._windows = self._windows, []
        return [
            self._figures(window, sum(window.step_ms) / len(window.step_ms)) if window.step_ms else {}
            for window in windows
        ]

    def summary(self) -> dict[str, float]:
        """Quantiles (type 7 of Hyndman and Fan, 1996: NumPy's default) of the steps after warm-up, throughput, and the
        mean wait for data: a loader that stalls at every tenth batch has a median of zero. Empty without such a step.
        For a device with a queue, also the medians of the host time that launches a step into the empty queue, and of
        the device's lag behind the host at the end of a step."""
        self._read()
        if not self._steady.step_ms:
            return {}
        is_majority = self._timer.has_queue and len(self._launch_ms) <= len(self._flowing_ms)
        ordered = sorted(self._flowing_ms if is_majority else self._steady.step_ms)
        figures = self._figures(self._steady, _quantile(ordered, 0.5)) | {
            "perf/step_ms_iqr": _quantile(ordered, 0.75) - _quantile(ordered, 0.25),
            "perf/step_ms_p95": _quantile(ordered, 0.95),
        }
        medians = {
            "perf/launch_ms": self._launch_ms,
            "perf/device_lag_ms": self._lag_ms,
            "perf/communication_ms": self._steady.communication_ms,
        }
        return figures | {key: median(times) for key, times in medians.items() if times}

    @property
    def waits_for_host(self) -> bool:
        """True if, after warm-up, the device finishes each step about when the host has launched it (launch-bound)."""
        self._read()
        if not self._lag_ms:
            return False
        return median(self._lag_ms) < _MAX_LAG_SHARE * median(self._steady.step_ms)

    def idle_share(self, *, between_steps: bool) -> float:
        """Share of the time after warm-up in which the host waited for data, or else all of it between steps."""
        self._read()
        idle_ms = self._steady.between_ms if between_steps else self._steady.data_wait_ms
        return idle_ms / self._steady.wall_ms if self._steady.step_ms else 0.0

    def overhead(self) -> dict[str, float]:
        """The suite's share of the time after warm-up in the steps read so far; empty without such steps."""
        if not self._steady.step_ms:
            return {}
        own_ms = self._steady.between_ms + self._steady.own_ms
        return {"instrumentation/overhead_pct": 100 * own_ms / self._steady.wall_ms}

    def _figures(self, times: "_Times", step_ms: float) -> dict[str, float]:
        figures = {"perf/step_ms": step_ms, "perf/data_wait_ms": times.data_wait_ms / len(times.step_ms)}
        if times.communication_ms:
            figures["perf/communication_ms"] = sum(times.communication_ms) / len(times.communication_ms)
        return figures | {key: 1e3 * work * len(times.step_ms) / times.wall_ms for key, work in self._work.items()}

    def _end_window(self) -> None:
        self._windows.append(self._window)
        self._window = _Times()

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        if self._timer.has_queue and unread:
            self._timer.lag_s(unread[-1].end)
            self._is_queue_empty = True  # reading has waited for the device
        between = self._timer.between_ms
        for step in unread:
            step_ms = between(step.start, step.end)
            before_ms = 0.0 if step.since is None else between(step.since, step.start)
            own_ms = sum(weight * between(start, end) for start, end, weight in step.own) if step.own else 0.0
            waits_ms = None if step.waits is None else sum(between(*wait) for wait in step.waits)
            if not step.is_traced:
                self._window.add(step_ms, before_ms, 1e3 * step.data_wait_s, own_ms, waits_ms)
                if step.is_steady:
                    self._steady.add(step_ms, before_ms, 1e3 * step.data_wait_s, own_ms, waits_ms)
                    if self._timer.has_queue:
                        self._note_queue(step, step_ms)
            for _ in range(step.num_cuts):
                self._end_window()

    def _note_queue(self, step: "_Step", step_ms: float) -> None:
        """Note the host's time of a step that began with an empty queue, or the time of another step, and the lag."""
        if step.is_after_wait:
            self._launch_ms.append(1e3 * (step.end[1] - step.start[1] - step.data_wait_s))
        else:
            self._flowing_ms.append(step_ms)
        if step.lag_s is not None:
            self._lag_ms.append(1e3 * step.lag_s)


class Stopwatch:
    """Adds up the host time of many short stretches inside `with`."""

    __slots__ = ("_began", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began

    def reset(self) -> None:
        self.seconds = 0.0


@dataclass(slots=True)
class _Step:
    """A step until its times are read; `start`, `end` and `since` are moments of a timer."""

    start: Any
    end: Any
    data_wait_s: float
    waits: Waits | None
    since: Any
    own: list[tuple[Any, Any, int]]
    is_steady: bool
    is_after_wait: bool
    is_traced: bool = False
    lag_s: float | None = None  # seconds by which the device ended the step after the host, if the host waited then
    num_cuts: int = 0


class _Times:
    """Times of several steps, and their sums."""

    def __init__(self) -> None:
        self.step_ms, self.communication_ms = array("d"), array("d")
        """The time of each step, and its waits for other ranks if there are any."""
        self.data_wait_ms = self.between_ms = self.own_ms = 0.0
        self.wall_ms = 0.0  # time of the steps and of the intervals before them

    def add(self, step_ms: float, before_ms: float, data_wait_ms: float, own_ms: float, waits_ms: float | None) -> None:
        self.step_ms.append(step_ms)
        self.data_wait_ms += data_wait_ms
        self.between_ms += before_ms
        self.own_ms += own_ms
        self.wall_ms += step_ms + before_ms
        if waits_ms is not None:
            self.communication_ms.append(waits_ms)


class Moments:
    """Moments of a device's work: events in its current queue, each with the host's time, or times on the host."""

    def __init__(self, device: torch.device) -> None:
        self.has_queue = device.type in _QUEUED
        self._device = device
        self._module = torch.get_device_module(device) if self.has_queue else None
        self.now: Callable[[], Any] = self._event if self.has_queue else perf_counter

    def _event(self) -> tuple[Any, float]:
        assert self._module is not None
        event = self._module.Event(enable_timing=True)
        if self._device.type == "mps":
            event.record()
        else:
            event.record(self._module.current_stream(self._device))
        return event, perf_counter()

    def wait(self) -> None:
        if self._module is not None:
            self._module.synchronize()

    def lag_s(self, moment: tuple[Any, float]) -> float:
        """Wait for a moment in the device's queue; return the seconds by which it came after the host's."""
        event, host_s = moment
        if event.query():
            return 0.0
        event.synchronize()
        return perf_counter() - float(host_s)

    def between_ms(self, start: Any, end: Any) -> float:
        """The time in ms between two past moments."""
        return float(start[0].elapsed_time(end[0]) if self.has_queue else 1e3 * (end - start))

    def since_ms(self, start: Any) -> float:
        """The time in ms since a moment; waits until the device is done."""
        end = self.now()
        self.wait()
        return self.between_ms(start, end)


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
