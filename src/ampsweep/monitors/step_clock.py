"""The time that optimizer steps take, on the device or the host, and host time in general."""

from array import array
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, Protocol

import torch

_QUEUED: Final = ("cuda", "xpu", "mps")
"""Devices that work behind the host's back and can note the time themselves."""


class StepClock:
    """Times optimizer steps between `begin` and `end`; what lies between two steps is not timed.

    On cuda, xpu and mps a step lasts as long on the device as between two events in its queue, and nothing waits for
    the device until `windows` or `summary` reads them. Elsewhere it lasts as long as on the host.

    Waiting for data is host time on every device; where the device is still busy meanwhile, it costs nothing.

    Warm-up are the first `warmup_steps` steps in this process and every step marked: it is outside the summary.
    """

    def __init__(
        self, device: torch.device, warmup_steps: int, samples_per_step: int, tokens_per_step: int | None
    ) -> None:
        self._timer: _Timer = _EventTimer(device) if device.type in _QUEUED else _HostTimer()
        self._num_warmup_steps_left = warmup_steps
        self._work = {"perf/samples_per_sec": samples_per_step}
        if tokens_per_step is not None:
            self._work["perf/tokens_per_sec"] = tokens_per_step
        self._now = self._timer.now
        self._start: Any = None
        self._unread: list[_Stretch] = []
        self._warmup: set[int] = set()
        """Unread steps that were marked, by index; and which of them were traced."""
        self._traced: set[int] = set()
        self._cuts: list[int] = []
        self._window = _Times()
        self._windows: list[_Times] = []
        """Windows that ended and were not told yet; `_window` goes on."""
        self._steady = _Times()

    def begin(self) -> None:
        """The step begins: call it before fetching its data."""
        self._start = self._now()

    def end(self, data_wait_s: float = 0.0) -> None:
        """The step ends; the host waited so many seconds for its data."""
        assert self._start is not None, "end before begin"
        self._unread.append((self._start, self._now(), data_wait_s))
        self._start = None

    def wait(self) -> None:
        """Wait until the device has done the latest step."""
        if self._unread:
            self._timer.wait(self._unread[-1][1])

    def mark_warmup(self, num_steps: int = 1) -> None:
        """The latest steps were warm-up (a compilation, a growing allocator). Call it before they are read."""
        num_unread = len(self._unread)
        assert num_steps <= num_unread, "steps that were read already"
        self._warmup.update(range(num_unread - num_steps, num_unread))

    def mark_traced(self) -> None:
        """The latest step was traced: it is warm-up, and no window tells its time. Call it before it is read."""
        assert self._unread, "no step since the last reading"
        self._traced.add(len(self._unread) - 1)

    def cut(self) -> None:
        """A window ends here: `windows` will tell of the steps since the last cut."""
        self._cuts.append(len(self._unread))

    def windows(self) -> list[dict[str, float]]:
        """Mean step time and throughput of each window ended since the last call, oldest first.

        Warm-up is included; a window without a step is empty.
        """
        self._read()
        windows, self._windows = self._windows, []
        return [self._figures(window, window.mean_ms) if window.step_ms else {} for window in windows]

    def summary(self) -> dict[str, float]:
        """Median, interquartile range and 95th percentile of the steps after warm-up, and throughput at the median.

        Quantiles are interpolated linearly between the two nearest steps (type 7 of Hyndman and Fan, The American
        Statistician 50, 1996: NumPy's default). The waiting for data is a mean: that of a loader which stalls at every
        tenth batch has a median of nothing. Empty when no step came after warm-up.
        """
        self._read()
        if not self._steady.step_ms:
            return {}
        ordered = sorted(self._steady.step_ms)
        return self._figures(self._steady, _quantile(ordered, 0.5)) | {
            "perf/step_ms_iqr": _quantile(ordered, 0.75) - _quantile(ordered, 0.25),
            "perf/step_ms_p95": _quantile(ordered, 0.95),
        }

    @property
    def mean_steady_s(self) -> float | None:
        """Mean time of the steps after warm-up that were read so far, in seconds; None where there are none."""
        return self._steady.mean_ms / 1e3 if self._steady.step_ms else None

    def _figures(self, times: "_Times", step_ms: float) -> dict[str, float]:
        figures = {"perf/step_ms": step_ms, "perf/data_wait_ms": times.data_wait_ms / len(times.step_ms)}
        return figures | {key: 1e3 * work / step_ms for key, work in self._work.items()}

    def _read(self) -> None:
        """Turn the steps that ended into times."""
        unread, self._unread = self._unread, []
        cuts, self._cuts = self._cuts, []
        warmup, self._warmup = self._warmup, set()
        traced, self._traced = self._traced, set()
        step_ms = self._timer.elapsed_ms(unread)
        wait_ms = [1e3 * wait_s for _, _, wait_s in unread]
        first_steady = min(self._num_warmup_steps_left, len(unread))
        self._num_warmup_steps_left -= first_steady
        self._steady.add(step_ms, wait_ms, first_steady, len(unread), without=warmup | traced)
        begin = 0
        for cut in cuts:
            self._window.add(step_ms, wait_ms, begin, cut, without=traced)
            self._windows.append(self._window)
            self._window, begin = _Times(), cut
        self._window.add(step_ms, wait_ms, begin, len(unread), without=traced)


class Stopwatch:
    """Host time added up over many short stretches: runs inside `with`, at the cost of two readings of the clock."""

    __slots__ = ("_began", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Time it ran since it was made or last reset."""
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began

    def reset(self) -> None:
        """Set it to zero."""
        self.seconds = 0.0


_Stretch = tuple[Any, Any, float]
"""From one moment of a timer to another, and how many seconds of it the host waited for data."""


class _Times:
    """Step times of several steps, and the waiting for data in all of them."""

    def __init__(self) -> None:
        self.step_ms = array("d")
        self.total_ms = 0.0
        self.data_wait_ms = 0.0

    def add(
        self, step_ms: Sequence[float], wait_ms: Sequence[float], begin: int, end: int, *, without: set[int]
    ) -> None:
        """Add the steps from `begin` to `end` (exclusive), but for those `without`."""
        steps, waits = step_ms[begin:end], wait_ms[begin:end]
        if without:
            kept = [index for index in range(begin, end) if index not in without]
            steps, waits = [step_ms[index] for index in kept], [wait_ms[index] for index in kept]
        self.step_ms.extend(steps)
        self.total_ms += sum(steps)
        self.data_wait_ms += sum(waits)

    @property
    def mean_ms(self) -> float:
        return self.total_ms / len(self.step_ms)


class _Timer(Protocol):
    def now(self) -> Any: ...

    def wait(self, moment: Any) -> None: ...

    def elapsed_ms(self, stretches: Sequence[_Stretch]) -> list[float]:
        """The length of each, oldest first; waits for the last to end."""
        ...


class _HostTimer:
    now = staticmethod(perf_counter)

    def wait(self, moment: float) -> None:
        """The host's present is always over."""

    def elapsed_ms(self, stretches: Sequence[_Stretch]) -> list[float]:
        return [1e3 * (end - start) for start, end, _ in stretches]


class _EventTimer:
    """Events in the device's current queue."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)

    def now(self) -> Any:
        event = self._module.Event(enable_timing=True)
        if self._device.type == "mps":
            event.record()
        else:
            event.record(self._module.current_stream(self._device))
        return event

    def wait(self, moment: Any) -> None:
        moment.synchronize()

    def elapsed_ms(self, stretches: Sequence[_Stretch]) -> list[float]:
        if stretches:
            self.wait(stretches[-1][1])
        return [start.elapsed_time(end) for start, end, _ in stretches]


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
