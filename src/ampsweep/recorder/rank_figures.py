"""The figures of all ranks of a training, and those of the whole that follow: the fullest rank's memory, the slowest
rank's time.
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.schema import PrecisionConfig
from ampsweep.parallel.base import Parallel
from ampsweep.record import RunRecord
from ampsweep.record.parts import Contamination, RankFigures

_SUMMED: Final = ("device/energy_j", "device/energy_per_sample_j", "device/busy_cores")
"""Figures of each device's own share of one thing."""
_OF_STEP: Final = ("perf/", "instrumentation/")
_VERDICTS: Final = ("clean", "unknown", "contaminated")
"""Verdicts on other use of a device, the worst last."""


def add_rank_figures(record: RunRecord, precision: PrecisionConfig, parallel: Parallel, num_steps: int) -> None:
    """Exchange the ranks' figures, and make those of the record the whole training's; every rank calls it.

    Its proof is that of the rank which contradicts its mode in most, rank 0's if none does.

    Args:
        precision: the settings that the ranks computed by.
        num_steps: the steps that this process has taken.
    """
    if parallel.world_size == 1:
        return
    ranks = parallel.gather(replace(record, ranks=[_figures(record, parallel.rank)]))
    record.ranks = [own for one in ranks for own in one.ranks]
    record.summary = _summary(ranks)
    if num_steps:
        record.summary["perf/reduced_mib"] = parallel.reduced_bytes / num_steps / 2**20
    record.memory = max(ranks, key=lambda one: one.memory.peak_bytes or 0).memory
    record.contamination = _contamination([one.contamination for one in ranks])
    record.proof = max(ranks, key=lambda one: len(contradictions(precision, one.proof))).proof
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
    """The summary of rank 0 with the memory of the fullest rank and the times of the slowest."""
    summary = dict(ranks[0].summary)
    fullest = _most(ranks, lambda one: one.summary.get("memory/peak_allocated_gib", _peak_gib(one)))
    slowest = _most(ranks, lambda one: one.summary.get("perf/step_ms"))
    for source, prefixes in ((fullest, ("memory/",)), (slowest, _OF_STEP)):
        if source is not None:
            summary = {key: value for key, value in summary.items() if not key.startswith(prefixes)}
            summary |= {key: value for key, value in source.summary.items() if key.startswith(prefixes)}
    waits = [one.summary["perf/communication_ms"] for one in ranks if "perf/communication_ms" in one.summary]
    if waits:  # the slowest rank is the one that the others wait for, and itself waits least
        summary["perf/communication_ms"] = min(waits)
    for key in _SUMMED:
        if all(key in one.summary for one in ranks):
            summary[key] = sum(one.summary[key] for one in ranks)
    peaks = [one.summary.get("memory/peak_allocated_gib", _peak_gib(one)) for one in ranks]
    known = [peak for peak in peaks if peak is not None]
    if len(known) == len(ranks):
        summary["memory/peak_allocated_spread_gib"] = max(known) - min(known)
    return summary


def _peak_gib(one: RunRecord) -> float | None:
    """The peak of the traced step, where no allocator counts."""
    return None if one.memory.peak_bytes is None else one.memory.peak_bytes / 2**30


def _most(ranks: Sequence[RunRecord], figure: Callable[[RunRecord], float | None]) -> RunRecord | None:
    known = [(value, -number) for number, one in enumerate(ranks) if (value := figure(one)) is not None]
    return ranks[-max(known)[1]] if known else None


def _contamination(ranks: Sequence[Contamination]) -> Contamination:
    """The worst verdict, with the reasons of the first rank that has it."""
    number, worst = max(
        enumerate(ranks), key=lambda one: _VERDICTS.index(one[1].verdict) if one[1].verdict in _VERDICTS else -1
    )
    if not worst.reasons:
        return worst
    return replace(worst, reasons=[f"rank {number}: {reason}" for reason in worst.reasons])
