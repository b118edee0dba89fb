"""Clocks: the time of optimizer steps and of what lies between, on the device or the host; stretches of host time."""

from array import array
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple

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

    On cuda, xpu and mps times are those between events in the device's queue, and nothing waits for the device until
    `windows` or `summary` reads them: what the host does while the device is busy takes no time there. Elsewhere they
    are times on the host.

    Waiting for data is host time on every device; while the device is still busy it costs nothing.

    A step after a wait for the device finds its queue empty, so that the device waits for the host's first launches. A
    bare loop does not wait: the summary's quantiles are those of the other steps, unless most steps come after a wait.

    All steps before `end_warmup` and all marked steps are warm-up, which the summary leaves out.
    """

    def __init__(self, device: torch.device, samples_per_step: int, tokens_per_step: int | None) -> None:
        self._timer = Moments(device)
        self._first_steady: int | None = None
        """Index of the first unread step after warm-up; None during warm-up."""
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
        self._unread: list[_Stretch] = []
        self._own: list[tuple[int, Any, Any, int]] = []
        """Stretches within unread steps that the suite took: index of the step, two moments, weight."""
        self._warmup: set[int] = set()
        """Indices of unread steps that were marked as warm-up; those that were traced are in `_traced` too."""
        self._traced: set[int] = set()
        self._after_wait: set[int] = set()
        """Indices of unread steps that begin, or will begin, with an empty queue."""
        self._lags_s: dict[int, float] = {}
        """Seconds by which the device was behind the host at the end of unread steps after which the host waited."""
        self._cuts: list[int] = []
        self._window = _Times()
        self._windows: list[_Times] = []
        """Windows that have ended and were not returned yet; `_window` is the current one."""
        self._steady = _Times()
        self._flowing_ms, self._launch_ms, self._lag_ms = array("d"), array("d"), array("d")
        """Steps after warm-up: times of those after no wait, the host's times of those after one, and lags."""
        self._waits: list[Waits] = []
        """Waits of each unread step for other ranks; empty where there are none."""

    def begin(self) -> None:
        """Begin a step; call it before fetching the step's data."""
        self._start = self.now()

    def end(self, data_wait_s: float = 0.0, waits: Waits | None = None) -> None:
        """End the step; the host waited this many seconds for its data, and the device, in a training of several ranks,
        for the others between these moments of `now`.
        """
        if waits is not None:
            self._waits.append(waits)
        assert self._start is not None, "end before begin"
        ended = self.now()
        self._unread.append((self._start, ended, data_wait_s, self._since))
        self._start, self._since = None, ended

    def own(self, since: Any, weight: int = 1) -> None:
        """Note that the current step's time since this moment went to the suite; it counts for as many steps."""
        if self._start is not None:
            self._own.append((len(self._unread), since, self.now(), weight))

    def restart(self) -> None:
        """Leave out the time since the latest step: it was no training's."""
        self._since = self.now()

    def wait(self) -> None:
        """Wait until the device has finished the latest step."""
        num_unread = len(self._unread)
        if self._timer.has_queue and num_unread and num_unread not in self._after_wait:
            self._lags_s[num_unread - 1] = self._timer.lag_s(self._unread[-1][1])
            self._after_wait.add(num_unread)

    def end_warmup(self) -> None:
        """End warm-up: the next step is the first that the summary includes."""
        self._first_steady = len(self._unread)

    def mark_warmup(self, num_steps: int = 1) -> None:
        """Mark the latest steps as warm-up (a compilation, a growing allocator); call it before they are read."""
        num_unread = len(self._unread)
        assert num_steps <= num_unread, "steps that were read already"
        self._warmup.update(range(num_unread - num_steps, num_unread))

    def mark_traced(self) -> None:
        """Mark the latest step as traced: it is warm-up, and no window includes its time. Call it before it is read."""
        assert self._unread, "no step since the last reading"
        self._traced.add(len(self._unread) - 1)

    def cut(self) -> None:
        """End a window: `windows` will include the steps since the last cut."""
        self._cuts.append(len(self._unread))

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
        """Median, interquartile range and 95th percentile of the steps after warm-up, and throughput.

        Quantiles are interpolated linearly between the two nearest steps (type 7 of Hyndman and Fan, The American
        Statistician 50, 1996: NumPy's default). The wait for data is a mean, because a loader that stalls at every
        tenth batch has a median of zero. Empty if no step came after warm-up.

        Where the device has a queue, also the medians of the host's time for a step that finds the queue empty, which
        is what launching takes, and of the time by which the device ends a step after the host.
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
        """Tell whether the device, after warm-up, had done a step about when the host had launched it."""
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

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        own, self._own = self._own, []
        cuts, self._cuts = self._cuts, []
        warmup, self._warmup = self._warmup, set()
        traced, self._traced = self._traced, set()
        after_wait, lags_s = self._after_wait, self._lags_s
        between = self._timer.between_ms
        if self._timer.has_queue and unread:
            self._timer.lag_s(unread[-1][1])
        step_ms = [between(start, end) for start, end, _, _ in unread]
        has_waited = self._timer.has_queue and (bool(unread) or 0 in after_wait)  # to read is to wait
        self._after_wait, self._lags_s = {0} if has_waited else set(), {}
        wait_ms = [1e3 * wait_s for _, _, wait_s, _ in unread]
        waits, self._waits = self._waits, []
        apart_ms = [sum(between(*wait) for wait in of_step) for of_step in waits]
        between_ms = [0.0 if since is None else between(since, start) for start, _, _, since in unread]
        own_ms = [0.0] * len(unread)
        for index, start, end, weight in own:
            if index < len(unread):  # else of a step that has not ended
                own_ms[index] += weight * between(start, end)
        read = _Read(step_ms, wait_ms, apart_ms, between_ms, own_ms)
        first_steady = len(unread) if self._first_steady is None else self._first_steady
        self._first_steady = None if self._first_steady is None else 0
        self._steady.add(read, first_steady, len(unread), without=warmup | traced)
        if self._timer.has_queue:
            for index in range(first_steady, len(unread)):
                if index in warmup or index in traced:
                    continue
                if index in after_wait:
                    (_, began_s), (_, ended_s), waited_s, _ = unread[index]
                    self._launch_ms.append(1e3 * (ended_s - began_s - waited_s))
                else:
                    self._flowing_ms.append(step_ms[index])
                if index in lags_s:
                    self._lag_ms.append(1e3 * lags_s[index])
        begin = 0
        for cut in cuts:
            self._window.add(read, begin, cut, without=traced)
            self._windows.append(self._window)
            self._window, begin = _Times(), cut
        self._window.add(read, begin, len(unread), without=traced)


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


_Stretch = tuple[Any, Any, float, Any]
"""Two moments of a timer, the seconds between them that the host waited for data, and the moment that ended what was
before."""


class _Read(NamedTuple):
    """Times of steps in ms, one of each a step; those apart are empty in a training of one rank."""

    step: Sequence[float]
    wait: Sequence[float]
    apart: Sequence[float]
    between: Sequence[float]
    own: Sequence[float]


class _Times:
    """Step times of several steps, and in all of them what was waiting for data and what the suite took."""

    def __init__(self) -> None:
        self.step_ms = array("d")
        self.data_wait_ms = 0.0
        self.communication_ms = array("d")
        """Waits for other ranks, of each step; empty where there are none."""
        self.wall_ms = 0.0
        """Time of the steps and of what lay before each."""
        self.between_ms = self.own_ms = 0.0

    def add(self, read: _Read, begin: int, end: int, *, without: set[int]) -> None:
        """Add the steps from `begin` to `end` (exclusive), except those in `without`."""
        if without:
            kept = [index for index in range(begin, end) if index not in without]
            added = _Read(*([values[index] for index in kept] if values else values for values in read))
        else:
            added = _Read(*(values[begin:end] for values in read))
        self.step_ms.extend(added.step)
        self.data_wait_ms += sum(added.wait)
        self.communication_ms.extend(added.apart)
        self.between_ms += sum(added.between)
        self.own_ms += sum(added.own)
        self.wall_ms += sum(added.step) + sum(added.between)


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
