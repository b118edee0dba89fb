"""The instruments of a training whose numerics are watched: they look into a step now and then."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.record.numerics import RunNumerics
from ampsweep.record.parts import as_json
from ampsweep.record.typed import typed
from ampsweep.training.instruments import Instruments

WATCH_PCT = "instrumentation/watch_pct"


class WatchedInstruments(Instruments):
    """Instruments that also look into steps. Like the traced step, such a step is in no figure of time.

    Args:
        watch: sees what is in a step, and says which ones are looked into.
        parts: those of `Instruments`.
    """

    def __init__(self, *args: Any, watch: NumericsWatch, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self.watch = watch

    def step(self) -> AbstractContextManager[None]:
        """Enclose one optimizer step: time it, trace it or look into it, as is due."""
        chosen = super().step()
        number = self.steps_before + self._num_steps_seen + 1
        is_due = chosen is self._timed_step and self.watch.looks.is_due(number)
        return self._looked_step(number) if is_due else chosen

    @contextmanager
    def _looked_step(self, number: int) -> Iterator[None]:
        looks, has_queue = self.watch.looks, self._precision.device.type != "cpu"
        mean_s = looks.steps_s / self._num_steps_seen if self._num_steps_seen else None
        with super().aside():
            began_s = perf_counter()
            with self.watch.look():
                self._clock.begin()
                yield
                self._clock.end(waits=None if self._waits is None else ())
            self.wait()
            self.watch.read(number)
            # The host knows the time of its own calls; a device may take longer for what they ask of it.
            more_s = perf_counter() - began_s - mean_s if has_queue and mean_s is not None else 0.0
            looks.looked(max(self.watch.own_time.seconds, more_s))
            self._settle_compilations()
            self._clock.mark_traced()
            self._num_steps_seen += 1
            self._look_at_warmup(perf_counter(), is_traced=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Enclose work that is no ordinary step; see `Instruments.aside`."""
        began_s = perf_counter()
        with super().aside():
            yield
        self.watch.looks.aside_s += perf_counter() - began_s

    def rows(self) -> list[dict[str, float]]:
        """Host-side metrics of every row ended since the last call; the last one has those of the latest look."""
        rows = super().rows()
        if rows:
            rows[-1] |= self.watch.figures()
        return rows

    def observed(self) -> dict[str, Any]:
        """The state that a checkpoint keeps; see `Instruments.observed`."""
        return super().observed() | {"numerics": as_json(self.watch.numerics())}

    def go_on(self, observed: dict[str, Any], step: int, *, is_same_run: bool) -> None:
        """Go on from what was seen before; see `Instruments.go_on`."""
        super().go_on(observed, step, is_same_run=is_same_run)
        if "numerics" in observed:
            self.watch.load(typed(RunNumerics)(observed["numerics"]))

    def summary(self) -> dict[str, float]:
        """The run's figures after warm-up."""
        cost_pct = self.watch.looks.cost_pct
        return super().summary() | ({} if cost_pct is None else {WATCH_PCT: cost_pct})
