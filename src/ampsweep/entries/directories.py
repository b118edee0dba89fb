"""Where runs go, and which earlier run a command line means."""

import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.record import CHECKPOINTS, LAST, OUTCOMES, PREVIOUS, RecordError, RunRecord, find_records


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
    """The directory of an earlier multirun.

    Raises:
        UserError: it is none, or cannot be written.
    """
    directory = Path(into).expanduser().resolve()
    if not directory.is_dir():
        raise UserError(f"into={into}: no such directory")
    if not (directory / "multirun.yaml").is_file():
        raise UserError(f"into={into}: not the directory of a multirun (it has no multirun.yaml)")
    if not os.access(directory, os.W_OK):
        raise UserError(f"into={into}: cannot be written")
    return directory


def finished(directory: Path, config: Config) -> RunRecord | None:
    """The record below `directory` of the point that `config` is, if it has an outcome."""
    wanted = config_hash(config)
    for _, record in find_records(directory):
        if record.config_hash == wanted and record.status in OUTCOMES:
            return record
    return None


def unfinished_run(config: Config) -> Path | None:
    """The newest unfinished run of this very config that left a checkpoint and is not still running."""
    root = Path(config.output_dir).expanduser().resolve() / config.name
    wanted = config_hash(config)
    candidates = [
        (record.attempts[-1]["started_at"], path)
        for path, record in _readable(root)
        if record.config_hash == wanted and record.status not in OUTCOMES and record.attempts
        if not _is_running(record.attempts[-1]) and checkpoint_of(path) is not None
    ]
    return max(candidates)[1] if candidates else None


def checkpoint_of(run_directory: Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    for name in (LAST, PREVIOUS):
        path = run_directory / CHECKPOINTS / name
        if path.is_file():
            return path
    return None


def _readable(root: Path) -> Iterator[tuple[Path, RunRecord]]:
    """Records of this version; those of others cannot be continued and are passed over."""
    for file in root.rglob("run.json"):
        try:
            yield file.parent, RunRecord.read(file.parent)
        except RecordError:
            continue


def _is_running(attempt: dict[str, Any]) -> bool:
    return bool(attempt["host"] == socket.gethostname() and psutil.pid_exists(attempt["pid"]))
