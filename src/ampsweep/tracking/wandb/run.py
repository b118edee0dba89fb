"""A run on Weights & Biases, by the unmodified client."""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ampsweep.metrics import STEP
from ampsweep.record import RunRecord
from ampsweep.record.outcome import exit_code
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.wandb.agent import is_agents_run, settle_stop
from ampsweep.tracking.wandb.api import steps_there
from ampsweep.tracking.wandb.content import (
    define_metrics,
    run_config,
    run_end,
    run_name,
    send_end,
    send_record,
    tracking_of,
)
from ampsweep.tracking.wandb.core import end_wandb, kill_wandb_core, opening_of, refused_file
from ampsweep.tracking.wandb.library import NO_ANSWER, current_login
from ampsweep.tracking.wandb.outage import OutageWatch, Patience, SeenServer
from ampsweep.tracking.wandb.server import is_stopped

if TYPE_CHECKING:
    import wandb

RunMode = Literal["online", "offline"]

_TAKEN_AWAY: Final = ("SIGTERM", "SIGUSR1", "SIGUSR2")
"""Signals by which a machine is taken away from a run."""
_SILENT_S: Final = 1.0
_LONGER_THAN_AN_ANSWER: Final = 10
"""A run begins with several requests."""


class WandbRun:
    """One run on W&B, online or in files for later: opened, given rows, closed; opened again where it was lost.

    Rows carry our own step axis, because W&B drops rows below its internal step. While the run goes on, its summary
    shows minimum, maximum and last value of each metric (one NaN makes the first two NaN). What else W&B gets is in
    `content`.

    What is lost is raised, as `lost_errors`: the server, wandb-core, the disk. `end_wandb` is the caller's to call.
    """

    def __init__(
        self, settings: "wandb.Settings", mode: RunMode, patience: Patience | None, seen: SeenServer | None = None
    ) -> None:
        """``settings`` are a `WandbPlace`'s; the end of the run waits as they say, but not beyond ``patience``.

        ``seen`` is what other runs know of the server; this one adds to it.
        """
        self.mode: RunMode = mode
        self.seen = SeenServer() if seen is None else seen
        self._settings, self._patience = settings, patience
        self._run: wandb.Run | None = None
        self._there: Container[int] = ()
        self._started_s = 0.0
        self._opening: tuple[Path, float] | None = None

    def trouble(self) -> str | None:
        """The reason why an `open` in another thread does not get through, as a clause; None where nothing is wrong."""
        heartbeat = self.seen.heartbeat
        if self.mode == "offline" or self._opening is None or heartbeat is None:
            return None
        opening = opening_of(*self._opening) if heartbeat.trouble is None else None
        if opening is None:
            return heartbeat.trouble
        silent_s = max(_SILENT_S, _LONGER_THAN_AN_ANSWER * heartbeat.answer_s)
        is_silent = heartbeat.heard_at is not None and time.time() - opening.asking_since > silent_s
        return opening.trouble or (f"{NO_ANSWER} to a run that begins" if is_silent else None)

    def listening(self) -> AbstractContextManager[object]:
        """Ask the server again and again, for as long as the context lasts, whether it is there."""
        return nullcontext() if self.seen.heartbeat is None else self.seen.heartbeat.beating()

    def open(
        self,
        record: RunRecord,
        directory: Path,
        steps: Sequence[int],
        *,
        there: Container[int] | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        """Start the W&B run, or go on with it, and add its url or directory to what ``record.wandb`` says.

        ``steps`` are those of the history so far, of which W&B may have some: those in ``there``, if that is known.
        ``on_stop`` is called in another thread when somebody stops the run on the server.
        """
        import wandb

        settings = self._settings.model_copy()  # init writes into it
        settings.stop_fn = on_stop
        wandb.setup(settings=wandb.Settings(silent=True))  # init alone leaves what is said outside of runs
        if self.mode == "online":
            self.seen.listen(current_login())
        self._opening = (directory, time.time())
        began = time.monotonic()  # wandb-core has started: what follows is the server's
        run = wandb.init(
            id=None if is_agents_run() else record.wandb.id,
            name=run_name(record),
            notes=tracking_of(record).notes,
            job_type=record.identity.precision_mode,
            config=run_config(record),
            dir=str(directory),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            settings=settings,
        )
        define_metrics(run)
        if self.mode == "offline":
            self._there = range((record.wandb.last_step or 0) + 1)
            place = Path(run.sync_dir)
            inside = place.relative_to(directory) if place.is_relative_to(directory) else place
            record.wandb.directory = inside.as_posix()
        else:
            self._there = (steps_there(run, steps) if run.resumed else ()) if there is None else there
            record.wandb |= WandbFacts(entity=run.entity, project=run.project, url=run.url)
        record.wandb.id = run.id
        send_record(run, record)
        self._run, self._started_s = run, time.monotonic() - began

    def log(self, row: Mapping[str, float], step: int) -> bool:
        """Send a row, unless W&B has it; whether it was sent."""
        assert self._run is not None, "log before open or after close"
        if step in self._there:
            return False
        self._run.log({STEP: step, **row})
        return True

    def save_files(self, files: Mapping[str, bytes]) -> None:
        """Send files by these names with the run."""
        assert self._run is not None, "save_files before open or after close"
        for name, content in files.items():
            path = Path(self._run.dir) / name
            path.write_bytes(content)
            self._run.save(path, base_path=path.parent, policy="now")

    def close(self, record: RunRecord, directory: Path) -> str | None:
        """Send status, figures and files and end the run, unless the server keeps us waiting for nothing.

        Returns:
            A clause about the first file that the server refuses; None where it takes all.
        """
        assert self._run is not None, "close before open"
        assert self._opening is not None, "close before open"
        run, self._run = self._run, None
        if record.status == "interrupted" and self.mode == "online":
            self._settle_interruption(run, record)
        end = run_end(run.id, record, directory)
        with self._watch(run):
            send_end(run, record, end)
            run.finish(exit_code=exit_code(record.status))
        return None if self.mode == "offline" else refused_file(run, self._opening[1])

    def _watch(self, run: "wandb.Run") -> AbstractContextManager[object]:
        if self._patience is None or self.mode == "offline":
            return nullcontext()
        return OutageWatch(run, self._patience, self.seen.heartbeat, usual_s=self._started_s)

    def abandon(self) -> None:
        """Leave a lost run as it is."""
        self._run = None
        kill_wandb_core()
        end_wandb()

    def _settle_interruption(self, run: "wandb.Run", record: RunRecord) -> None:
        """An agent's SIGTERM may be its sweep's wish; any other means that the machine is taken away."""
        heartbeat = self.seen.heartbeat
        if is_agents_run() and not record.wandb.stopped and heartbeat is not None:
            record.wandb.stopped = is_stopped(heartbeat.login, run.entity, run.project, run.id)
        settle_stop(record)
        if record.status == "interrupted" and record.attempts and record.attempts[-1].stopped_by in _TAKEN_AWAY:
            run.mark_preempting()
