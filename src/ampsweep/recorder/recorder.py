"""The recorder: any training loop drives it, and it writes the run's record and history."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ampsweep.metrics import MEASURED, MEDIA
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.recorder.divergence import DivergenceWatch, Ending
from ampsweep.recorder.instruments import Instruments, MeasuredPrecision
from ampsweep.recorder.media import write_media
from ampsweep.recorder.out_of_memory import out_of_memory
from ampsweep.recorder.rank_figures import add_rank_figures
from ampsweep.records import NO_ROOM, RunRecord
from ampsweep.records.outcome import OutOfMemory, Phase, Status
from ampsweep.records.run_record import now
from ampsweep.text import one_line

if TYPE_CHECKING:
    from ampsweep.tracking.tracker import Tracker

FLUSH_EVERY_S = 1.0
"""Rows within this time are read together; a killed process loses them. A read waits for the device, which then idles
until the host has launched the next step: on an H200, 20 reads a second cost 2.6 % of steps of 3.2 ms."""
_SAME_ON_ALL: Final = ("amp/scale", "amp/skipped_steps", "amp/applied_steps")
"""Figures that must agree on all ranks, which would otherwise train different models."""
_OF_TIME: Final = ("perf/", "instrumentation/")
_CAPACITY: Final = 32
_WIDTH: Final = 8  # most values on the device in a row, beside those of several losses


@dataclass(slots=True)
class _Unread:
    step: int
    numbers: dict[str, Any]
    on_device: list[str]  # keys of this row's values in the buffer, in order


class UnreadRows:
    """Up to 32 rows in one buffer on the device, so that keeping them does not change memory figures.

    The buffer is float64 (float32 on mps, which has no float64): exact for losses and for counts below 2**53.
    """

    def __init__(self, device: torch.device, num_more: int = 0) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._buffer = torch.zeros(_CAPACITY, _WIDTH + num_more, dtype=dtype, device=device)
        self._unread: list[_Unread] = []

    @cached_property
    def _places(self) -> list[tuple[Tensor, ...]]:
        """0-dim views of the buffer, created once, since creating them costs more than filling them."""
        return [row.unbind() for row in self._buffer]

    def __len__(self) -> int:
        return len(self._unread)

    @property
    def full(self) -> bool:
        return len(self._unread) == _CAPACITY

    def add(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Add a row without waiting for its values; tensors are 0-dim, on the device, without gradient."""
        numbers: dict[str, Any] = {}
        on_device: list[str] = []
        places = iter(self._places[len(self._unread)])
        for key, value in values.items():
            if not isinstance(value, Tensor):
                numbers[key] = value
            elif (place := next(places, None)) is None:  # a row with many metrics of the user's
                numbers[key] = value.clone()
            else:
                place.copy_(value)
                on_device.append(key)
        self._unread.append(_Unread(step, numbers, on_device))

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """Remove and return all rows, oldest first, as (step, values), read in one copy; waits for the device."""
        unread, self._unread = self._unread, []
        read = self._buffer[: len(unread)].tolist()
        rows = []
        for row, values in zip(unread, read, strict=True):
            numbers = {key: value.item() if isinstance(value, Tensor) else value for key, value in row.numbers.items()}
            rows.append((row.step, numbers | dict(zip(row.on_device, values, strict=False))))
        return rows


def do_nothing(*_: object) -> None:
    """Stand in for a log, a progress display or a checkpoint."""


class Recorder:
    """Times the steps of a training, logs its rows and fills in its record.

    The loop encloses each step by `step`, calls `log` after it, and fills in the record by `end`::

        recorder.begin()
        with recorder.instruments:
            for batch in batches:
                with recorder.step():
                    ...
                recorder.log({"train/loss": loss})
            recorder.flush()
        recorder.end()
        recorder.close()

    Args:
        parallel: the ranks of the training, which all call the same methods in the same order.
        num_losses: losses in a row beside their sum.
        record: the record to fill in; None to measure without a record.
        tracker: keeps the history, if given.
        directory: the run's, for `record`; None on ranks that do not write the record.
        on_rows: called after rows were logged.
        ends_at_divergence: rows after a divergence are dropped; False: the loop goes on, and its last row decides.
    """

    def __init__(
        self,
        instruments: Instruments,
        precision: MeasuredPrecision,
        *,
        parallel: Parallel = SINGLE,
        num_losses: int = 0,
        record: RunRecord | None = None,
        tracker: "Tracker | None" = None,
        directory: Path | None = None,
        on_rows: Callable[[], None] = do_nothing,
        ends_at_divergence: bool = True,
    ) -> None:
        self.instruments, self._precision, self._parallel = instruments, precision, parallel
        self._record, self._tracker, self._directory, self._on_rows = record, tracker, directory, on_rows
        self.step, self.count_update = instruments.step, instruments.count_update
        self._ends_at_divergence = ends_at_divergence
        self._log_row = do_nothing if tracker is None else tracker.log
        self.phase: Phase | None = None  # the current part of a step; None if the loop does not say
        self.values: dict[str, float] = {}  # the latest value of every logged metric
        self.diverged: Ending | None = None  # the divergence found so far; later rows are dropped
        self._last_step = 0
        self._rows = UnreadRows(precision.device, num_more=num_losses)
        self._numbers = DivergenceWatch(precision.config.backoff_factor)
        self._flushed_s, self.flush_due_s = -math.inf, math.inf
        """When rows were last logged, and when the waiting rows are due, by the ranks' common clock."""

    @property
    def record(self) -> RunRecord:
        assert self._record is not None, "this training leaves no record"
        return self._record

    def leave(self, error: BaseException | None, busy_before: str | None = None) -> RuntimeError | None:
        """End measuring and fill in the record of a training that ended, with `error` if any; `close` writes it.

        Returns the error with which the device no longer answered, if so.
        """
        lost = None
        try:
            self.flush()
        except RuntimeError as raised:  # the device no longer answers
            lost = raised
        self.instruments.__exit__()
        if (failure := error or lost) is None:
            self.conclude(self.diverged or self.at_end() or Ending("completed"))
        else:
            device, step = self._precision.device, self.instruments.num_steps + 1
            oom = out_of_memory(failure, device, MemoryLimit(device, None), self.phase, step)
            status: Status = "oom" if oom else "failed" if isinstance(failure, Exception) else "interrupted"
            self.fail(status, oom.sentence if oom else one_line(failure), oom)
        self.end(busy_before)
        return lost

    def begin(self, resume_after: int | None = None) -> None:
        """Write the record and open the history; `resume_after`: last step of the checkpoint, if any."""
        self.write()
        if self._tracker is not None and self._directory is not None:
            self._tracker.start(self.record, self._directory, resume_after=resume_after)
            self.write()

    @contextmanager
    def aside(self, phase: Phase = "other") -> Iterator[None]:
        before, self.phase = self.phase, phase
        with self.instruments.aside():
            yield
        self.phase = before

    def log(self, values: Mapping[str, Any], step: int | None = None, *, now_s: float | None = None) -> None:
        """Add a row; waiting rows are read together when they are due.

        Args:
            values: by metric; tensors are 0-dim and stay on their device until the row is read. May have `kept` media.
            step: from 1; None: the latest step. A ValueError unless it is later than that of the last row.
            now_s: the time by the ranks' common clock; None to ask for it.
        """
        step = self.instruments.num_steps if step is None else step
        if step <= self._last_step:
            raise ValueError(
                f"a row of step {step}: the next is of step {self._last_step + 1} or later, with all values of its step"
            )
        self._last_step = step
        if "train/loss" in values:
            self.instruments.end_row()
        self._rows.add(step, values)
        self.flush_due_s = self._flushed_s + FLUSH_EVERY_S
        now_s = self._parallel.now_s() if now_s is None else now_s
        if self._rows.full or now_s >= self.flush_due_s:
            self.flush(now_s)

    def kept(self, media: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Write images and tables by name (see `write_media`); return what the step's row says of them."""
        try:
            return {**write_media(self._directory, media, step)} if media and self._directory is not None else {}
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return {}  # a training on a full disk goes on without pictures, as without checkpoints

    def flush(self, now_s: float = -math.inf) -> None:
        """Read and log the waiting rows; rows after a divergence are dropped."""
        if not self._rows:
            return
        self._flushed_s, self.flush_due_s = now_s, math.inf
        self.instruments.wait()
        figures = iter(self.instruments.rows())
        for step, values in self._rows.take():
            if self.diverged is not None and self._ends_at_divergence:
                return
            if "train/loss" in values:
                values |= next(figures)
                self._parallel.require_same({key: values[key] for key in _SAME_ON_ALL if key in values}, step)
            self.diverged = self._numbers.row(step, values)
            self.values |= values
            self._log_row(values, step)
            if self.diverged is not None and self._ends_at_divergence:
                return
        self._on_rows()

    def at_end(self) -> Ending | None:
        return self._numbers.at_end(self.instruments.num_last_skipped())

    def conclude(self, ending: Ending) -> None:
        self.record.status, self.record.error, self.record.cut_short = ending.status, ending.error, ending.cut_short
        self.record.stopped_early = ending.stopped_early

    def fail(self, status: Status, sentence: str, oom: OutOfMemory | None = None) -> None:
        self.record.status, self.record.error, self.record.oom = status, sentence, oom

    def end(self, busy_before: str | None = None, *, slowed_by: str | None = None, exchanges: bool = True) -> None:
        """Fill in summary, memory, proof and contamination, of a failed run up to its failure.

        `slowed_by`: a clause on what slowed the run, whose speed is then left out; `exchanges`: the other ranks are
        there.
        """
        record, own = self.record, self.instruments
        values = {key: value for key, value in self.values.items() if not key.startswith((*MEASURED, MEDIA))}
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        record.summary, record.absent = finite | own.summary(), own.absent()
        record.memory, record.compilation = own.memory(), own.compilation()
        record.proof |= own.proof()
        if record.attempts:
            record.attempts[-1].warmup_steps = own.num_warmup_steps
        if self._precision.emulated is None:  # else the record has no figures that anything could have changed
            record.contamination = found = own.contamination(busy_before)
            if slowed_by is not None:
                record.summary = {key: value for key, value in record.summary.items() if not key.startswith(_OF_TIME)}
                record.absent["perf/step_ms"] = slowed_by
                reasons = [slowed_by, *(found.reasons or () if found.verdict == "contaminated" else ())]
                record.contamination = replace(found, verdict="contaminated", reasons=reasons)
        if self._directory is not None and own.watch is not None:
            with suppress(OSError):  # on a full disk nothing is written
                own.watch.numerics().write(self._directory)
        if exchanges:
            add_rank_figures(record, self._precision.config, self._parallel, own.num_steps_seen)
        record.ended_at = now()

    def close(self) -> None:
        """Close the history and write the record. Raises OSError if the disk is full and rows are lost."""
        if self._tracker is not None:
            self._tracker.finish(self.record)
        self.write()

    def write(self) -> None:
        """Write the record, unless another rank does."""
        if self._directory is not None:
            self.record.write(self._directory)
