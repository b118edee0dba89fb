"""Figures of a training on several ranks: each rank's own, the fullest rank's memory and the slowest rank's time."""

import hashlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.schema import PrecisionConfig
from ampsweep.parallel.base import Parallel
from ampsweep.records import RecordError, RunRecord
from ampsweep.records.sections import Contamination, RankFigures

_SUMMED: Final = ("device/energy_j", "device/energy_per_sample_j", "device/busy_cores")
"""Figures that add up over devices."""
_OF_STEP: Final = ("perf/", "instrumentation/")
_VERDICTS: Final = ("clean", "unknown", "contaminated")  # verdicts on other use of a device, the worst last
_WAIT_S: Final = 10.0  # for files of the other ranks
_LAUNCH: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables that the ranks of a launch have in common, and no other launch has all of."""


def add_rank_figures(record: RunRecord, precision: PrecisionConfig, parallel: Parallel, num_steps: int) -> None:
    """Exchange the ranks' figures and replace those of the record by the whole training's; every rank calls it."""
    if parallel.world_size == 1:
        return
    merge_ranks(record, parallel.gather(of_rank(record, parallel.rank)), precision)
    if num_steps:
        record.summary["perf/reduced_mib"] = parallel.reduced_bytes / num_steps / 2**20


def exchange_rank_files(
    record: RunRecord, root: Path, rank: int, precision: PrecisionConfig, *, waits: bool = True
) -> None:
    """Write the figures of a rank below `root`; on rank 0 wait for all others, and merge those that came.

    A collective would do, but in a group of another's a rank that never calls it would hang the others.
    """
    launch = " ".join(os.environ.get(name, "") for name in _LAUNCH)
    place = root / f".ranks-{hashlib.sha256(launch.encode()).hexdigest()[:8]}"
    own = of_rank(record, rank)
    if rank > 0:
        with suppress(OSError):  # without a common folder rank 0 goes on alone
            (place / str(rank)).mkdir(parents=True, exist_ok=True)
            own.write(place / str(rank))
        return
    others, until = range(1, record.identity.world_size), time.monotonic() + _WAIT_S * waits
    found: dict[int, RunRecord] = {}
    while len(found) < len(others):
        for other in others:
            with suppress(RecordError, FileNotFoundError):
                found[other] = RunRecord.read(place / str(other))
        if time.monotonic() >= until:
            break
        time.sleep(0.05)
    merge_ranks(record, [own, *(found[other] for other in sorted(found))], precision)
    shutil.rmtree(place, ignore_errors=True)


def of_rank(record: RunRecord, rank: int) -> RunRecord:
    """The record that a rank contributes."""
    return replace(record, ranks=[_figures(record, rank)])


def merge_ranks(record: RunRecord, ranks: Sequence[RunRecord], precision: PrecisionConfig) -> None:
    """Replace the record's figures by those of the whole training, from the records `of_rank`, in their order.

    The proof is that of the rank with most contradictions to the mode, rank 0's if there are none.
    """
    record.ranks = [own for other in ranks for own in other.ranks]
    record.summary = _summary(ranks)
    record.memory = max(ranks, key=lambda other: other.memory.peak_bytes or 0).memory
    record.contamination = _contamination([other.contamination for other in ranks])
    record.proof = max(ranks, key=lambda other: len(contradictions(precision, other.proof))).proof
    record.absent = ranks[0].absent


def _figures(record: RunRecord, rank: int) -> RankFigures:
    figure = record.summary.get
    return RankFigures(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=record.identity.device,
        device_name=record.identity.device_name,
        peak_bytes=record.memory.peak_bytes,
        peak=record.memory.peak,
        peak_allocated_gib=figure("memory/peak_allocated_gib"),
        peak_reserved_gib=figure("memory/peak_reserved_gib"),
        process_gib=figure("memory/process_gib"),
        step_ms=figure("perf/step_ms"),
        data_wait_ms=figure("perf/data_wait_ms"),
        communication_ms=figure("perf/communication_ms"),
    )


def _summary(ranks: Sequence[RunRecord]) -> dict[str, float]:
    summary = dict(ranks[0].summary)
    fullest = _most(ranks, _peak_gib)
    slowest = _most(ranks, lambda rank: rank.summary.get("perf/step_ms"))
    for source, prefixes in ((fullest, ("memory/",)), (slowest, _OF_STEP)):
        if source is not None:
            summary = {key: value for key, value in summary.items() if not key.startswith(prefixes)}
            summary |= {key: value for key, value in source.summary.items() if key.startswith(prefixes)}
    waits = [rank.summary["perf/communication_ms"] for rank in ranks if "perf/communication_ms" in rank.summary]
    if waits:  # the others wait for the slowest rank, which itself waits least
        summary["perf/communication_ms"] = min(waits)
    for key in _SUMMED:
        if all(key in rank.summary for rank in ranks):
            summary[key] = sum(rank.summary[key] for rank in ranks)
    known = [peak for rank in ranks if (peak := _peak_gib(rank)) is not None]
    if len(known) == len(ranks):
        summary["memory/peak_allocated_spread_gib"] = max(known) - min(known)
    return summary


def _peak_gib(rank: RunRecord) -> float | None:
    traced = None if rank.memory.peak_bytes is None else rank.memory.peak_bytes / 2**30
    return rank.summary.get("memory/peak_allocated_gib", traced)


def _most(ranks: Sequence[RunRecord], figure: Callable[[RunRecord], float | None]) -> RunRecord | None:
    known = [(value, -number) for number, rank in enumerate(ranks) if (value := figure(rank)) is not None]
    return ranks[-max(known)[1]] if known else None


def _contamination(ranks: Sequence[Contamination]) -> Contamination:
    """The worst verdict, with the reasons of the first rank that has it."""
    verdicts = [_VERDICTS.index(rank.verdict) if rank.verdict in _VERDICTS else -1 for rank in ranks]
    number = verdicts.index(max(verdicts))
    worst = ranks[number]
    if not worst.reasons:
        return worst
    return replace(worst, reasons=[f"rank {number}: {reason}" for reason in worst.reasons])
