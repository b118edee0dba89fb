"""What a training came to, from its trainer into its record."""

import math
from dataclasses import replace
from typing import Final

from ampsweep.metrics import MEASURED
from ampsweep.precision.proof import contradictions
from ampsweep.record import RunRecord
from ampsweep.record.batch_search import LARGEST_BATCH
from ampsweep.training.trainer import Trainer

_OF_TIME: Final = ("perf/", "instrumentation/")
_WATCHED: Final = "under trainer.memory_limit_gib on a CPU every operator is watched, which slows it down"


def add_figures(record: RunRecord, trainer: Trainer, busy: str | None, *, slowed_by_limit: bool) -> None:
    """Fill in summary, memory, proof and contamination, of a run that failed those until then.

    Args:
        busy: who used the device before the run did, as a sentence.
        slowed_by_limit: the speed is that of the memory limit: it is left out, and contamination says why.
    """
    values = {key: value for key, value in trainer.values.items() if not key.startswith(MEASURED)}
    finite = {key: value for key, value in values.items() if math.isfinite(value)}
    record.summary = finite | trainer.instruments.summary()
    record.memory = trainer.instruments.memory()
    record.proof |= trainer.instruments.proof()
    record.proof.contradictions = contradictions(trainer.precision.config, record.proof)
    record.contamination = trainer.instruments.contamination(busy)
    if slowed_by_limit:
        record.summary = {key: value for key, value in record.summary.items() if not key.startswith(_OF_TIME)}
        found = record.contamination
        reasons = [_WATCHED, *(found.reasons or () if found.verdict == "contaminated" else ())]
        record.contamination = replace(found, verdict="contaminated", reasons=reasons)
    search = record.batch_search
    if search is not None and record.status == "completed" and search.largest == record.identity.batch_size:
        record.summary[LARGEST_BATCH] = search.largest
