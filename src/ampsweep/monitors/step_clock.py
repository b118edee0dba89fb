"""Clocks: the time of optimizer steps and of what lies between, on the device or the host; stretches of host time."""

from array import array
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

_QUEUED: Final = ("cuda", "xpu", "mps")
"""Devices that work asynchronously from a queue and can record times themselves."""
_MAX_LAG_SHARE: Final = 0.05
"""Share of a step by which a device that waits for its host is behind it, the last kernels' time. A busy one is behind
by all that its queue holds: about a thousand kernels, or a whole step that has fewer."""

Waits = Sequence[tuple[Any, Any]]
"""Stretches between two moments of a timer."""


class StepClock:
    """Times optimizer steps between `begin` and `end`, and what lies between two steps: throughput is by both.

    On cuda, xpu and mps it takes events of the device's queue, for which nothing waits until `windows` or `summary`
    reads them; elsewhere times on the host. Waiting for data is host time everywhere.

    A step after a wait for the device finds its queue empty and waits for the host's first launches, which no bare loop
    does: the summary's quantiles leave such steps out, unless they are the most. It leaves out warm-up, too: all steps
    before `end_warmup` and all that are marked.
    """

    def __init__(self, device: torch.device, samples_per_step: int, tokens_per_step: int | None) -> None:
        self._timer = Moments(device)
        self._work = {"perf/samples_per_sec": samples_per_step}
        if tokens_per_step is not None:
            self._work["perf/tokens_per_sec"] = tokens_per_step
        self.now = self._timer.now
        """Takes a moment: seconds on the host, or an event in the device's queue. Nothing waits for it."""
        self.sampling = 16 if self._timer.has_queue else 1
        """One step of so many is enough to tell what each takes, where taking a moment costs as much as a kernel."""
        self._start: Any = None
        self._since: Any = None
        """The moment from which on no step was taken; None before the first."""
        self._own: list[tuple[Any, Any, int]] = []
        """Stretches of the current step that the suite took: two moments, weight."""
        self._is_warm = False
        self._is_queue_empty = False
        """The next step begins, or the current one began, with an empty queue."""
        self._unread: list[_Step] = []
        self._window = _Times()
        self._windows: list[_Times] = []
        """Windows that have ended and were not returned yet; `_window` is the current one."""
        self._steady = _Times()
        self._flowing_ms, self._launch_ms, self._lag_ms = array("d"), array("d"), array("d")
        """Steps after warm-up: times of those after no wait, the host's times of those after one, and lags."""

    def begin(self) -> None:
        """Begin a step; call it before fetching the step's data."""
        self._start = self.now()

    def end(self, data_wait_s: float = 0.0, waits: Waits | None = None) -> None:
        """End the step; the host waited `data_wait_s` for its data, and the device for other ranks during `waits`."""
        assert self._start is not None, "end before begin"
        step = _Step(self._start, self.now(), data_wait_s, waits, self._since, self._own)
        step.is_steady, step.is_after_wait = self._is_warm, self._is_queue_empty
        self._unread.append(step)
        self._start, self._since, self._own, self._is_queue_empty = None, step.end, [], False

    def own(self, since: Any, weight: int = 1) -> None:
        """Note that the current step's time since this moment went to the suite; it counts for as many steps."""
        if self._start is not None:
            self._own.append((since, self.now(), weight))

    def restart(self) -> None:
        """Leave out the time since the latest step: it was no training's."""
        self._since = self.now()

    def wait(self) -> None:
        """Wait until the device has finished the latest step."""
        if self._timer.has_queue and self._unread and not self._is_queue_empty:
            self._unread[-1].lag_s = self._timer.lag_s(self._unread[-1].end)
            self._is_queue_empty = True

    def end_warmup(self) -> None:
        """End warm-up: the next step is the first that the summary includes."""
        self._is_warm = True

    def mark_warmup(self, num_steps: int = 1) -> None:
        """Mark the latest steps as warm-up (a compilation, a growing allocator); call it before they are read."""
        assert num_steps <= len(self._unread), "steps that were read already"
        for step in self._unread[len(self._unread) - num_steps :]:
            step.is_steady = False

    def mark_traced(self) -> None:
        """Mark the latest step as traced: it is warm-up, and no window includes its time. Call it before it is read."""
        assert self._unread, "no step since the last reading"
        self._unread[-1].is_traced = True

    def cut(self) -> None:
        """End a window: `windows` will include the steps since the last cut."""
        if self._unread:
            self._unread[-1].num_cuts += 1
        else:
            self._end_window()

    def windows(self) -> list[dict[str, float]]:
        """Return mean step time and throughput of each window ended since the last call, oldest first.

        Warm-up is included; a window without a step is empty.
        """
        self._read()
        windows, self._windows = self._windows, []
        return [
            self._figures(window, sum(window.step_ms) / len(window.step_ms)) if window.step_ms else {}
            for window in windows
        ]

    def summary(self) -> dict[str, float]:
        """Quantiles (type 7 of Hyndman and Fan, 1996: NumPy's default) of the steps after warm-up, throughput, and the
        mean wait for data: a loader that stalls at every tenth batch has a median of zero. Empty without such a step.

        Where the device has a queue, also the median host time of launching a step that finds the queue empty, and of
        the time by which the device ends a step after the host.
        """
        self._read()
        if not self._steady.step_ms:
            return {}
        most = self._flowing_ms if len(self._launch_ms) <= len(self._flowing_ms) else self._steady.step_ms
        ordered = sorted(most if self._timer.has_queue else self._steady.step_ms)
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
        """True if, after warm-up, the device ends each step about when the host has launched it (launch-bound)."""
        self._read()
        if not self._lag_ms:
            return False
        return median(self._lag_ms) < _MAX_LAG_SHARE * median(self._steady.step_ms)

    @property
    def data_wait_share(self) -> float:
        """The share of the time after warm-up in which the host waited for data."""
        self._read()
        return self._steady.data_wait_ms / self._steady.wall_ms if self._steady.step_ms else 0.0

    def overhead(self) -> dict[str, float]:
        """The suite's share of the time after warm-up, of the steps that were read so far; empty if there are none."""
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
            self._is_queue_empty = True  # to read is to wait
        between = self._timer.between_ms
        for step in unread:
            step_ms = between(step.start, step.end)
            before_ms = 0.0 if step.since is None else between(step.since, step.start)
            own_ms = sum(weight * between(start, end) for start, end, weight in step.own) if step.own else 0.0
            apart_ms = None if step.waits is None else sum(between(*wait) for wait in step.waits)
            if not step.is_traced:
                self._window.add(step_ms, before_ms, 1e3 * step.data_wait_s, own_ms, apart_ms)
                if step.is_steady:
                    self._steady.add(step_ms, before_ms, 1e3 * step.data_wait_s, own_ms, apart_ms)
                    if self._timer.has_queue:
                        self._note_queue(step, step_ms)
            for _ in range(step.num_cuts):
                self._end_window()

    def _note_queue(self, step: "_Step", step_ms: float) -> None:
        """Note what launching a step took that found the queue empty, or the time of another step, and the lag."""
        if step.is_after_wait:
            self._launch_ms.append(1e3 * (step.end[1] - step.start[1] - step.data_wait_s))
        else:
            self._flowing_ms.append(step_ms)
        if step.lag_s is not None:
            self._lag_ms.append(1e3 * step.lag_s)


class Stopwatch:
    """Host time added up over many short stretches inside `with`, each at the cost of two readings of the clock."""

    __slots__ = ("_began", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds that it ran since it was made or last reset."""
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began

    def reset(self) -> None:
        self.seconds = 0.0


class _Step:
    """A step until its times are read: moments of a timer, and what was noted of it meanwhile."""

    __slots__ = (
        *("start", "end", "data_wait_s", "waits", "since", "own"),
        *("is_steady", "is_traced", "is_after_wait", "lag_s", "num_cuts"),
    )

    def __init__(
        self, start: Any, end: Any, data_wait_s: float, waits: Waits | None, since: Any, own: list[tuple[Any, Any, int]]
    ) -> None:
        self.start, self.end, self.since = start, end, since
        self.data_wait_s, self.waits, self.own = data_wait_s, waits, own
        self.is_steady = self.is_traced = self.is_after_wait = False
        self.lag_s: float | None = None
        """Seconds by which the device was behind the host at its end, if the host waited then."""
        self.num_cuts = 0
        """Windows that end with it."""


class _Times:
    """Times of several steps, and what waiting for data and the suite took in all of them."""

    def __init__(self) -> None:
        self.step_ms, self.communication_ms = array("d"), array("d")
        """The time of each step, and its waits for other ranks, which are empty in a training of one."""
        self.data_wait_ms = self.between_ms = self.own_ms = 0.0
        self.wall_ms = 0.0
        """Time of the steps and of what lay before each."""

    def add(self, step_ms: float, before_ms: float, data_wait_ms: float, own_ms: float, apart_ms: float | None) -> None:
        self.step_ms.append(step_ms)
        self.data_wait_ms += data_wait_ms
        self.between_ms += before_ms
        self.own_ms += own_ms
        self.wall_ms += step_ms + before_ms
        if apart_ms is not None:
            self.communication_ms.append(apart_ms)


class Moments:
    """Moments of a device's work: events in its current queue, each with the host's time, or times on the host."""

    def __init__(self, device: torch.device) -> None:
        self.has_queue = device.type in _QUEUED
        """True if the device works asynchronously; on the host there is nothing to wait for."""
        self._device = device
        self._module = torch.get_device_module(device) if self.has_queue else None
        self.now: Callable[[], Any] = self._event if self.has_queue else perf_counter
        """Takes a moment; nothing waits for it."""

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
        """Wait for a moment in the device's queue; return by how many seconds it came after the host's."""
        event, host_s = moment
        if event.query():  # the device was there before the host asked
            return 0.0
        event.synchronize()
        return perf_counter() - float(host_s)

    def between_ms(self, start: Any, end: Any) -> float:
        """The time in ms between two moments that have passed."""
        return float(start[0].elapsed_time(end[0]) if self.has_queue else 1e3 * (end - start))

    def since_ms(self, start: Any) -> float:
        """The time in ms since a moment; waits until the device has done what it was given."""
        end = self.now()
        self.wait()
        return self.between_ms(start, end)


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
