"""The parts of a training whose numerics are watched: they look into a step now and then."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

import torch

from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.record.numerics import RunNumerics
from ampsweep.record.parts import as_json
from ampsweep.record.reading import converted
from ampsweep.training.build.built import Built
from ampsweep.training.instruments import Instruments
from ampsweep.training.trainer import Trainer

WATCH_PCT = "instrumentation/watch_pct"


class WatchedTrainer(Trainer):
    """A trainer that looks into steps, and notes which gradients make a scaler skip them.

    With a scaler and a fused optimizer on an accelerator only the device knows which steps are skipped: there, the
    gradients that are not finite are noted in the steps that are looked into.

    Args:
        instruments: those that say which steps are looked into.
        parts: the others of `Trainer`.
    """

    def __init__(self, built: Built, *, instruments: Instruments, **parts: Any) -> None:
        assert isinstance(instruments, WatchedInstruments)
        precision: Any = built.precision  # whose methods this trainer's take the place of
        self._is_host = precision.device.type == "cpu"
        self._plain_unscale_, self._plain_step = precision.unscale_, precision.step
        precision.unscale_, precision.step = self._unscale_watched, self._step_watched
        super().__init__(built, instruments=instruments, **parts)
        self.watch: NumericsWatch = instruments.watch
        self._have_seen: set[torch.optim.Optimizer] = set()
        """Optimizers whose gradients have been looked at in this turn."""

    def _unscale_watched(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients, once they have been seen; clipping comes next, which spreads NaN over all of them."""
        if self.watch.is_looking:
            self._see(optimizer)
        self._plain_unscale_(optimizer)
        self._note_skipped(optimizer)

    def _step_watched(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer take its step, or the scaler skip it, and look at what that makes of the parameters."""
        is_noted = bool(self.precision.found_nonfinite(optimizer))  # when the gradients were unscaled
        if self.watch.is_looking:
            self._see(optimizer)
            self.watch.before_update(optimizer)
        self._plain_step(optimizer)
        if not is_noted:
            self._note_skipped(optimizer)
        if self.watch.is_looking:
            self.watch.after_update(is_applied=not any(map(bool, self.precision.found_nonfinite(optimizer))))
        self._have_seen.discard(optimizer)

    def _see(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._have_seen:
            self._have_seen.add(optimizer)
            self.watch.see_gradients(optimizer)

    def _note_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        if (self._is_host or self.watch.is_looking) and any(map(bool, self.precision.found_nonfinite(optimizer))):
            self.watch.note_nonfinite(optimizer)


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
        number = self.steps_before + self.num_steps_seen + 1
        is_due = chosen is self._timed_step and self.watch.looks.is_due(number)
        return self._looked_step(number) if is_due else chosen

    @contextmanager
    def _looked_step(self, number: int) -> Iterator[None]:
        looks, has_queue = self.watch.looks, self._precision.device.type != "cpu"
        mean_s = looks.steps_s / self.num_steps_seen if self.num_steps_seen else None
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
            self.num_steps_seen += 1
            self._look_at_warmup(perf_counter(), is_traced=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
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
        return super().observed() | {"numerics": as_json(self.watch.numerics())}

    def go_on(self, observed: dict[str, Any], step: int, *, is_same_run: bool) -> None:
        super().go_on(observed, step, is_same_run=is_same_run)
        if "numerics" in observed:
            self.watch.load(converted(observed["numerics"], RunNumerics))

    def summary(self) -> dict[str, float]:
        cost_pct = self.watch.looks.cost_pct
        return super().summary() | ({} if cost_pct is None else {WATCH_PCT: cost_pct})
