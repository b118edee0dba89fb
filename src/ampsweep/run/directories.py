"""Directories of new runs, and the earlier runs that a command line refers to."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil

from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash, run_directory_name
from ampsweep.config.schema import Config
from ampsweep.launch.slurm import num_restarts, own_job, users_jobs
from ampsweep.records import MULTIRUN_NAME, RecordError, RunRecord, find_records, kept_checkpoints, read_history
from ampsweep.records.outcome import OUTCOMES

_MAX_PID: Final = 2**31


def new_directory(config: Config) -> Path:
    """Create `<output_dir>/<name>/<date_time>`, with a number if that exists; UserError: it cannot be created."""
    try:
        return dated_directory(Path(config.output_dir).expanduser().resolve() / config.name)
    except OSError as error:
        raise UserError(f"output_dir={config.output_dir}: cannot be written: {error.strerror}") from error


def dated_directory(parent: Path) -> Path:
    """Create `<date_time>` in `parent`, with a number if that exists; raises OSError."""
    stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 10_000):
        directory = parent / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        with suppress(FileExistsError):
            directory.mkdir()
            return directory
    raise AssertionError("ten thousand runs in one second")


def existing_multirun(into: str) -> Path:
    """The directory of an earlier multirun; UserError: it is none, or cannot be written."""
    directory = Path(into).expanduser().resolve()
    if not directory.is_dir():
        raise UserError(f"into={into}: no such directory")
    if not (directory / MULTIRUN_NAME).is_file():
        raise UserError(f"into={into}: not the directory of a multirun (it has no {MULTIRUN_NAME})")
    if not os.access(directory, os.W_OK):
        raise UserError(f"into={into}: cannot be written")
    return directory


def finished_hashes(directory: Path, mentioning: str | None = None) -> set[str]:
    """Config hashes of the runs below `directory` that have an outcome; `mentioning`: as for `find_records`."""
    found = find_records(directory, mentioning=mentioning).records
    return {record.config_hash for _, record in found if record.status in OUTCOMES}


def own_directory(directory: Path) -> Path:
    """`directory`, or a numbered sibling if its record (maybe of a newer version) cannot be read."""
    place, number = directory, 1
    while True:
        with suppress(RecordError):
            with suppress(FileNotFoundError):
                RunRecord.read(place)
            return place
        number += 1
        place = directory.with_name(f"{directory.name}-{number}")


def unfinished_run(config: Config, say: Callable[[str], None], *, of_job: str | None = None) -> Path | None:
    """The newest unfinished run of this config with a checkpoint that is not running; `resume` may differ. `of_job`:
    only a run whose last process belonged to this Slurm job. Unreadable records are skipped, with a line for the user
    if the directory's name fits this config."""
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
        if of_job in (None, record.attempts[-1].slurm_job) and not is_running(record) and kept_checkpoints(path)
    ]
    return max(candidates)[1] if candidates else None


def resumed_run(config: Config, say: Callable[[str], None]) -> tuple[Path | None, Path | None]:
    """The directory that `resume=` continues in (None: a new one) and its checkpoint (None: from the start). A requeued
    Slurm job resumes its own run without `resume=`. UserError: that run's history is damaged or changed."""
    if config.begins_elsewhere:
        return None, checkpoint_path(config)
    if config.resume == "auto":
        directory, why = unfinished_run(config, say), ""
        if directory is None:
            say("resume=auto: no unfinished run of this config; starting afresh")
    else:
        directory, why = None, "Slurm has requeued this job: "
        if num_restarts():
            directory = unfinished_run(config, say, of_job=own_job())
    if directory is not None:
        try:
            read_history(directory, RunRecord.read(directory).history_digest)
        except RecordError as error:
            raise UserError(
                f"a run cannot be resumed whose history cannot be trusted: {error}; resume={directory} begins another "
                "run from its checkpoint"
            ) from error
        say(f"{why}resuming {directory}")
    return directory, directory


def checkpoint_path(config: Config) -> Path | None:
    """The checkpoint or run directory that `resume=PATH` names, if any; UserError: several paths fit the pattern."""
    if config.resume in (None, "auto"):
        return None
    path = Path(config.resume).expanduser()
    root = Path(path.anchor)
    found = [] if path.exists() else sorted(root.glob(str(path.relative_to(root))))
    if len(found) > 1:
        raise UserError(f"resume={config.resume}: {len(found)} paths fit it, such as {found[0]} and {found[1]}")
    return found[0] if found else path


def requeued_multirun(config: Config) -> Path | None:
    """The newest multirun that this Slurm job began before it was requeued."""
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


def is_running(record: RunRecord) -> bool:
    """Return True if the run's process is alive, by this machine's processes or by Slurm."""
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
        has_ended = process.status() == psutil.STATUS_ZOMBIE  # ended, but not reaped
        started = datetime.fromisoformat(attempt.started_at or "").timestamp()
    except (psutil.NoSuchProcess, ValueError):
        return False
    return born <= started + 1 and not has_ended  # started_at is in whole seconds


def resolved_directory(directory: Path) -> Path:
    """Resolve the directory to an absolute path without links; UserError: impossible, as for a link to itself."""
    try:
        return directory.resolve()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{directory}: {error}") from error
