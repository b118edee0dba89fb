"""Points with a seam: a run in one precision keeps its checkpoint in the middle, and others go on from there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from filelock import FileLock

from ampsweep.config.identity import run_directory_name
from ampsweep.config.schema import Config
from ampsweep.config.seam import uninterrupted
from ampsweep.record import AT_SEAM, RunRecord, kept_checkpoint
from ampsweep.record.outcome import OUTCOMES
from ampsweep.run.directories import has_checkpoint, own_directory
from ampsweep.run.messages import MessagePrinter
from ampsweep.run.own_process import run_in_own_process
from ampsweep.run.point_runs import PointRuns
from ampsweep.run.request import RunRequest, Untrained

_POLL_S: Final = 0.2
_LOCK: Final = ".lock"


@dataclass(frozen=True)
class _FirstPart:
    """An uninterrupted run and the checkpoint that it has kept at its seam; None if it ended before."""

    record: RunRecord
    checkpoint: Path | None


def train_at_seam(request: RunRequest, runs: PointRuns, sweep: Path, display: MessagePrinter) -> None:
    """Train a point with a seam in a process of its own; before it, if there is none yet, the run that it goes on from.

    An uninterrupted run of the multirun is trained once, whichever points need it, and in whichever worker they are.

    Args:
        request: the request of the point; with a checkpoint of its own the point goes on from that.

    Raises:
        KeyboardInterrupt: this process was asked to stop.
    """
    if request.config.seam.saved_in is None:
        _train_once(request, runs, display)
        return
    if request.checkpoint is None:
        first = _first_part(request, runs, sweep, display)
        ended = None if first.checkpoint is not None else _ended_before(request.config, first.record)
        request = replace(request, checkpoint=first.checkpoint, untrained=ended)
    run_in_own_process(request, display)


def _first_part(request: RunRequest, runs: PointRuns, sweep: Path, display: MessagePrinter) -> _FirstPart:
    config = uninterrupted(request.config)
    if (found := _found(runs, config)) is not None:
        return found
    directory = own_directory(sweep / run_directory_name(config))
    # The prediction of the request is that of the point's own precision.
    before = replace(request, config=config, directory=directory, prediction=None)
    return _train_once(before, runs, display, is_counted=False)


def _train_once(
    request: RunRequest, runs: PointRuns, display: MessagePrinter, *, is_counted: bool = True
) -> _FirstPart:
    """Train an uninterrupted run, unless another worker has done so meanwhile; `is_counted`: as a point of its own."""
    with _claimed(request.directory):
        if (found := _found(runs, request.config)) is not None:
            return found
        own = request.directory if has_checkpoint(request.directory) else None
        run_in_own_process(replace(request, checkpoint=own), display, lambda record: not is_counted)
    return _as_found(request.directory, RunRecord.read(request.directory))


@contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """Hold the run's directory, so that two workers that need the run do not both train it."""
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / _LOCK).acquire(poll_interval=_POLL_S):
        yield


def _found(runs: PointRuns, config: Config) -> _FirstPart | None:
    """Find the uninterrupted run of `config` that has ended; not one whose checkpoint somebody has deleted."""
    for directory, record in runs.of(config):
        if record.status in OUTCOMES:
            found = _as_found(directory, record)
            if found.checkpoint is not None or record.status != "completed" or record.cut_short is not None:
                return found
    return None


def _as_found(directory: Path, record: RunRecord) -> _FirstPart:
    return _FirstPart(record, kept_checkpoint(directory, AT_SEAM))


def _ended_before(config: Config, record: RunRecord) -> Untrained:
    """The end of a point without a checkpoint to begin with: the end of the run which should have kept it."""
    notes = record.attempts[-1].notes if record.attempts else None  # such as one on a full disk
    why = record.error or record.cut_short or "; ".join(notes or ())
    sentence = f"the run in {record.arm} that it goes on from has no checkpoint of step {config.seam.step}"
    sentence += f": {why}" if why else ""
    return Untrained("failed" if record.status == "completed" else record.status, sentence, record.oom)
