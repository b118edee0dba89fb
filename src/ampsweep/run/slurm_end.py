"""The end of a run whose job Slurm has ended: its processes are gone, and who has submitted it completes the record."""

import re
from pathlib import Path
from typing import Final

from ampsweep.config.schema import Config
from ampsweep.launch.slurm import JobState
from ampsweep.record import RecordError, RunRecord, now
from ampsweep.record.outcome import OUTCOMES, OutOfMemory
from ampsweep.record.parts import Attempt
from ampsweep.run.failure import write_error
from ampsweep.run.request import new_record

_TAIL_BYTES: Final = 65_536
_OVER_LIMIT: Final = re.compile(r"exceeded memory limit \((\d+) > (\d+)\)")
_OUT_OF_MEMORY: Final = re.compile(r"exceeded (?:job |step )?memory limit|oom[-_ ]kill", re.IGNORECASE)
"""Slurm's own words in a job's log: of what looks at the memory by the clock, and of what asks the kernel's cgroups."""
_TAKEN_AWAY: Final = frozenset({"CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE", "REVOKED"})
"""States of jobs that somebody has ended who had nothing against the run."""


def complete_record_of_job(directory: Path, config: Config, job: JobState, log: Path) -> RunRecord | None:
    """Complete the record of the run in `directory` by what Slurm tells of its job, which left no result.

    Returns the record; None if the run never began, because its job was taken away first.

    Args:
        log: what the job wrote to stderr, Slurm's own lines about its end included.
    """
    record = _read(directory)
    is_of_job = record is not None and bool(record.attempts) and record.attempts[-1].slurm_job == job.job
    if record is not None and (record.status in OUTCOMES or (is_of_job and record.ended_at is not None)):
        return record
    said = _tail(log)
    if record is None:
        if job.state in _TAKEN_AWAY and not directory.is_dir():
            return None
        record = new_record(config, device=config.device)
    if not is_of_job:
        record.attempts.append(Attempt(slurm_job=job.job))
    if job.state == "OUT_OF_MEMORY" or _OUT_OF_MEMORY.search(said):
        record.oom = _out_of_memory(job, said)
        record.status, record.error = "oom", record.oom.sentence
    elif job.state in _TAKEN_AWAY:
        record.status, record.error = "interrupted", _taken_away(job)
    else:
        code = "" if job.exit_code is None else f" with exit code {job.exit_code}"
        record.status, record.error = "failed", f"Slurm's job {job.job} ended {job.state}{code}; its log: {log}"
    record.ended_at = now()
    directory.mkdir(parents=True, exist_ok=True)
    if record.status == "failed":
        write_error(directory, f"{record.error}\n\n{said}", config)
    record.write(directory)
    return record


def _out_of_memory(job: JobState, said: str) -> OutOfMemory:
    over = _OVER_LIMIT.search(said)
    used, limit = (None, job.memory_limit_bytes) if over is None else (int(over[1]), int(over[2]))
    return OutOfMemory(phase=None, in_use_bytes=used, limit_bytes=limit, killed_by="slurm", slurm_job=job.job)


def _taken_away(job: JobState) -> str:
    match job.state:
        case "TIMEOUT":
            limit = "" if job.time_limit is None else f" ({job.time_limit})"
            return f"the time limit{limit} of Slurm's job {job.job} killed the run"
        case "CANCELLED":
            return f"Slurm's job {job.job} was cancelled"
        case "PREEMPTED":
            return f"Slurm has preempted its job {job.job}"
    return f"Slurm's job {job.job} ended {job.state}"


def _read(directory: Path) -> RunRecord | None:
    try:
        return RunRecord.read(directory)
    except (FileNotFoundError, RecordError):
        return None


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
