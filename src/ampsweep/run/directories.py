"""Directories for new runs, and the search for earlier runs that a command line refers to."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil

from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash, run_directory_name
from ampsweep.config.schema import Config
from ampsweep.launch.slurm import num_restarts, own_job, users_jobs
from ampsweep.record import RecordError, RunRecord, find_records, kept_checkpoints, read_history
from ampsweep.record.outcome import OUTCOMES

MULTIRUN_NAME: Final = "multirun.yaml"
"""The file that Hydra writes into the directory of a multirun."""
_MAX_PID: Final = 2**31


def new_directory(config: Config) -> Path:
    """Create `<output_dir>/<name>/<date_time>`; a number is added where that exists.

    Raises:
        UserError: it cannot be created.
    """
    parent = Path(config.output_dir).expanduser().resolve() / config.name
    stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 10_000):
            directory = parent / (stamp if attempt == 1 else f"{stamp}-{attempt}")
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            return directory
    except OSError as error:
        raise UserError(f"output_dir={config.output_dir}: cannot be written: {error.strerror}") from error
    raise AssertionError("ten thousand runs in one second")


def existing_multirun(into: str) -> Path:
    """Find the directory of an earlier multirun.

    Raises:
        UserError: it is no multirun's directory, or cannot be written.
    """
    directory = Path(into).expanduser().resolve()
    if not directory.is_dir():
        raise UserError(f"into={into}: no such directory")
    if not (directory / MULTIRUN_NAME).is_file():
        raise UserError(f"into={into}: not the directory of a multirun (it has no {MULTIRUN_NAME})")
    if not os.access(directory, os.W_OK):
        raise UserError(f"into={into}: cannot be written")
    return directory


def finished_hashes(directory: Path) -> set[str]:
    """Hashes of the configs below `directory` that have an outcome."""
    return {record.config_hash for _, record in find_records(directory).records if record.status in OUTCOMES}


def own_directory(directory: Path) -> Path:
    """Return `directory`, or one beside it if its record cannot be read: a newer version may be able to read it."""
    place, number = directory, 1
    while _is_unreadable(place):
        number += 1
        place = directory.with_name(f"{directory.name}-{number}")
    return place


def unfinished_run(config: Config, say: Callable[[str], None], *, of_job: str | None = None) -> Path | None:
    """Find the newest unfinished run of this very config that left a checkpoint and is not running any more.

    It may have begun with the checkpoint of another run.

    Records that cannot be read are passed over, with a line for the user if the directory's name fits this config.

    Args:
        of_job: only a run whose last process belonged to this job of Slurm.
    """
    root = Path(config.output_dir).expanduser().resolve() / config.name
    name = run_directory_name(config)
    found = find_records(root)
    for error in found.unreadable:
        if error.path.parent.name == name:
            say(f"{'resume=auto: ' if of_job is None else ''}passed over, {error}")
    candidates = [
        (record.attempts[-1].started_at or "", path)
        for path, record in found.records
        if record.status not in OUTCOMES and record.attempts
        if record.config_hash == config_hash(replace(config, resume=record.config.get("resume")))
        if of_job in (None, record.attempts[-1].slurm_job) and not is_running(record) and has_checkpoint(path)
    ]
    return max(candidates)[1] if candidates else None


def resumed_run(config: Config, say: Callable[[str], None]) -> tuple[Path | None, Path | None]:
    """Find the directory that `resume=` continues in (None: a new one) and its checkpoint (None: from the start).

    A job that Slurm has requeued goes on with its own run unasked.

    Raises:
        UserError: the history of that run is damaged, or has been changed.
    """
    if config.resume is None:
        directory = unfinished_run(config, say, of_job=own_job()) if num_restarts() else None
        if directory is not None:
            _check_history(directory)
            say(f"Slurm has requeued this job: resuming {directory}")
        return directory, directory
    if config.begins_elsewhere:
        return None, checkpoint_path(config)
    directory = unfinished_run(config, say)
    if directory is None:
        say("resume=auto: no unfinished run of this config; starting afresh")
    else:
        _check_history(directory)
        say(f"resuming {directory}")
    return directory, directory


def _check_history(directory: Path) -> None:
    try:
        read_history(directory, RunRecord.read(directory).history_digest)
    except RecordError as error:
        raise UserError(
            f"a run cannot be resumed whose history cannot be trusted: {error}; resume={directory} begins another run "
            "from its checkpoint"
        ) from error


def checkpoint_path(config: Config) -> Path | None:
    """Find the checkpoint, or the directory of a run, that `resume=PATH` names; None where it names none.

    Raises:
        UserError: it is a pattern that several paths fit.
    """
    if config.resume in (None, "auto"):
        return None
    path = Path(config.resume).expanduser()
    root = Path(path.anchor)
    found = [] if path.exists() else sorted(root.glob(str(path.relative_to(root))))
    if len(found) > 1:
        raise UserError(f"resume={config.resume}: {len(found)} paths fit it, such as {found[0]} and {found[1]}")
    return found[0] if found else path


def requeued_multirun(config: Config) -> Path | None:
    """Find the newest multirun that this job of Slurm has begun before it was requeued; None if it has begun none."""
    job = own_job() if num_restarts() else None
    if job is None:
        return None
    root = Path(config.output_dir).expanduser().resolve() / config.name
    begun = [
        (record.attempts[-1].started_at or "", path.parent)
        for path, record in find_records(root, mentioning=f'"slurm_job": "{job}"').records
        if record.attempts[-1].slurm_job == job and (path.parent / MULTIRUN_NAME).is_file()
    ]
    return max(begun)[1] if begun else None


def has_checkpoint(run_directory: Path) -> bool:
    """Tell whether a run has left a checkpoint, whole or not."""
    return bool(kept_checkpoints(run_directory))


def _is_unreadable(run_directory: Path) -> bool:
    try:
        RunRecord.read(run_directory)
    except FileNotFoundError:
        return False
    except RecordError:
        return True
    return False


def is_running(record: RunRecord) -> bool:
    """Tell whether the run's process is alive, as far as this machine or Slurm can tell."""
    if not record.attempts:
        return False
    attempt = record.attempts[-1]
    if attempt.slurm_job is not None and attempt.slurm_job != own_job() and (jobs := users_jobs()) is not None:
        job = jobs.get(attempt.slurm_job)
        return job is not None and not job.is_over
    pid = attempt.pid or 0
    if attempt.host != socket.gethostname() or not 0 < pid < _MAX_PID:
        return False
    try:
        process = psutil.Process(pid)
        born: float = process.create_time()
        has_ended = process.status() == psutil.STATUS_ZOMBIE  # its parent, too, and nobody has asked how it ended
        started = datetime.fromisoformat(attempt.started_at or "").timestamp()
    except (psutil.NoSuchProcess, ValueError):
        return False
    return born <= started + 1 and not has_ended  # given in whole seconds


def resolved_directory(directory: Path) -> Path:
    """Resolve the directory to an absolute path without links.

    Raises:
        UserError: there is no such path, as for a link to itself.
    """
    try:
        return directory.resolve()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{directory}: {error}") from error
