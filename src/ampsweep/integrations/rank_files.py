"""Figures of the ranks of a training whose process group is not the suite's: exchanged as files."""

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ampsweep.config.schema import PrecisionConfig
from ampsweep.recorder.rank_figures import merge_ranks, of_rank
from ampsweep.records import RecordError, RunRecord

_WAIT_S: Final = 10.0
_LAUNCH: Final = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables that the ranks of a launch have in common, and no other launch has all of."""


def exchange_figures(
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
