"""A run on Weights & Biases, by the unmodified client."""

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from filelock import FileLock

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
from ampsweep.tracking.wandb.library import Login
from ampsweep.tracking.wandb.server import is_stopped

if TYPE_CHECKING:
    import wandb

RunMode = Literal["online", "offline"]

_TAKEN_AWAY: Final = ("SIGTERM", "SIGUSR1", "SIGUSR2")
"""Signals by which a machine is taken away from a run."""


def sending_lock(directory: Path) -> FileLock:
    """The lock of the one process that sends the run in ``directory``; it is released with that process, if killed."""
    folder = directory / "wandb"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / "sending.lock")


class WandbRun:
    """One run on W&B, online or in files for later: opened, given rows, closed, by a process that does nothing else.

    Rows carry our own step axis, because W&B drops rows below its internal step. What else W&B gets is in `content`.
    What wandb raises, it raises; whoever waits for it ends the process.
    """

    def __init__(self, settings: "wandb.Settings", mode: RunMode) -> None:
        """``settings`` are a `WandbPlace`'s."""
        self.mode: RunMode = mode
        self._settings = settings
        self._run: wandb.Run | None = None
        self._there: Container[int] = ()

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

        self._settings.stop_fn = on_stop
        wandb.setup(settings=wandb.Settings(silent=True))  # init alone leaves what is said outside of runs
        run = wandb.init(
            id=None if is_agents_run() else record.wandb.id,
            name=run_name(record),
            notes=tracking_of(record).notes,
            job_type=record.identity.precision_mode,
            config=run_config(record),
            dir=str(directory),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            settings=self._settings,
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
        self._run = run

    def log(self, row: Mapping[str, float], step: int) -> bool:
        """Send a row, unless W&B has it; whether it was sent."""
        assert self._run is not None, "log before open or after close"
        if step in self._there:
            return False
        self._run.log({STEP: step, **row})
        return True

    def save_code(self) -> None:
        """Send the Python files of the working directory."""
        assert self._run is not None, "save_code before open or after close"
        self._run.log_code()

    def save_files(self, files: Mapping[str, bytes]) -> None:
        """Send files by these names with the run."""
        assert self._run is not None, "save_files before open or after close"
        for name, content in files.items():
            path = Path(self._run.dir) / name
            path.write_bytes(content)
            self._run.save(path, base_path=path.parent, policy="now")

    def close(self, record: RunRecord, directory: Path, login: Login | None = None) -> None:
        """Send status, figures and files, and wait until W&B has all of the run.

        The server of the ``login`` is asked whether it has stopped a run of an agent.
        """
        assert self._run is not None, "close before open"
        run, self._run = self._run, None
        if record.status == "interrupted" and self.mode == "online":
            _settle_interruption(run, record, login)
        send_end(run, record, run_end(run.id, record, directory))
        run.finish(exit_code=exit_code(record.status))


def _settle_interruption(run: "wandb.Run", record: RunRecord, login: Login | None) -> None:
    """An agent's SIGTERM may be its sweep's wish; any other means that the machine is taken away."""
    if is_agents_run() and not record.wandb.stopped and login is not None:
        record.wandb.stopped = is_stopped(login, run.entity, run.project, run.id)
    settle_stop(record)
    if record.status == "interrupted" and record.attempts and record.attempts[-1].stopped_by in _TAKEN_AWAY:
        run.mark_preempting()
