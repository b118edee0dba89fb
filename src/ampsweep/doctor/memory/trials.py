"""Changes of a training that are tried by tracing it again, and what allocations have in common."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from ampsweep.config.schema import Config
from ampsweep.doctor.memory.findings import TracedAgain
from ampsweep.doctor.memory.traced import Held, TracedMemory, trace_memory
from ampsweep.doctor.patient import Patient
from ampsweep.text import one_line

MIN_COST_PCT: Final = 8.0
"""Less than this share of the peak is no finding."""
MOST_CAUSES: Final = 4
"""The most causes of one kind that are tried, or told."""


def tried(patient: Patient, config: Config | None = None, **changes: Any) -> TracedMemory | None:
    """Trace the training with changes, as `trace_memory` takes them; None if it fails with them, which is told as a
    fact, or no time is left."""
    if patient.seconds_left < 0:
        return None
    try:
        return trace_memory(patient, config, makers=False, **changes)
    except Exception as error:  # noqa: BLE001  a change may not suit the training in any way
        failed = patient.facts.setdefault("memory/changes_that_failed", [])
        assert isinstance(failed, list)
        failed.append(one_line(error))
        return None


def pct(part: float, whole: float) -> float:
    return 100 * part / whole


def saved_pct(own: TracedMemory, changed: TracedMemory) -> float:
    """The share of the peak that a change saves."""
    return pct(own.peak_bytes - changed.peak_bytes, own.peak_bytes)


def compared(own: TracedMemory, changed: TracedMemory | None) -> TracedAgain | None:
    """The proof of a change; None where it could not be tried."""
    if changed is None:
        return None
    return TracedAgain(
        mends=saved_pct(own, changed) >= MIN_COST_PCT,
        peak_bytes_before=own.peak_bytes,
        peak_bytes_after=changed.peak_bytes,
    )


def by_module(held: Sequence[Held]) -> dict[str, int]:
    """Bytes by the module that made them, the most at first."""
    sizes: dict[str, int] = defaultdict(int)
    for one in held:
        if one.call is not None:
            sizes[one.call.module or ""] += one.num_bytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def place(held: Sequence[Held]) -> str | None:
    """The line that made the largest of some allocations."""
    made = [one for one in held if one.call is not None and one.call.place is not None]
    largest = max(made, key=lambda one: one.num_bytes, default=None)
    return None if largest is None or largest.call is None else largest.call.place
