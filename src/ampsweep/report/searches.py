"""The largest batches that train, as tables of texts for every renderer."""

from typing import Final

from ampsweep.analysis.quantities import num_bytes, number, ratio, ratio_figure
from ampsweep.analysis.searches import ArmSearch, SearchComparison
from ampsweep.batch_search import Probe
from ampsweep.report.columns import ABSENT
from ampsweep.report.table import Table

HEADING: Final = "Largest batch that trains"
METHOD: Final = (
    "each batch was tried by a short training in a process of its own, until two steps were applied, with an "
    "evaluation; the largest trains while the next one does not, and the throughput is that of a training with it. "
    "Batches are micro-batches. Under trainer.memory_limit_gib the bytes of all live tensors count on a CPU, checked "
    "after each operator, and on CUDA what the allocator reserves"
)


def heading(found: SearchComparison) -> str:
    """What was asked: on what, and within which memory."""
    limit = "" if found.memory_limit_bytes is None else f", within {num_bytes(found.memory_limit_bytes)}"
    return f"{found.title}{limit}"


def search_table(found: SearchComparison) -> Table:
    """An arm a row."""
    figures = ("largest batch", "against baseline", "samples/s there", "against baseline", "peak memory", "n")
    headers = ("arm", *figures, "status")
    return Table(headers, (False, *(True for _ in figures), False), tuple(map(_row, found.arms)))


def reasons(found: SearchComparison) -> list[str]:
    """Why no arm has a larger batch, and what else a reader of the table must know."""
    lines = [f"{arm.arm}: {arm.why}" for arm in found.arms]
    return lines + [f"{arm.arm}: {note}" for arm in found.arms for note in arm.notes]


def probes_table(found: SearchComparison) -> Table:
    """Every batch that was tried, as far as the first search of each arm went."""
    headers = ("arm", "batch", "outcome", "peak memory", "why")
    rows = tuple(_probe(arm.arm, probe) for arm in found.arms for probe in arm.probes)
    return Table(headers, (False, True, False, True, False), rows)


def _row(arm: ArmSearch) -> tuple[str, ...]:
    more = "+" if arm.bound == "limit" else ""
    return (
        arm.arm,
        ABSENT if arm.batch_size is None else "not even 1" if arm.batch_size == 0 else f"{arm.batch_size}{more}",
        ABSENT if arm.times_baseline is None else ratio(arm.times_baseline),
        ABSENT if arm.samples_per_sec is None else number(arm.samples_per_sec),
        ABSENT if arm.throughput_ratio is None else ratio_figure(arm.throughput_ratio),
        ABSENT if arm.peak_memory_bytes is None else num_bytes(arm.peak_memory_bytes),
        str(arm.num_runs),
        arm.status,
    )


def _probe(arm: str, probe: Probe) -> tuple[str, ...]:
    peak = ABSENT if probe.peak_bytes is None else num_bytes(probe.peak_bytes)
    outcome = "out of memory" if probe.outcome == "oom" else probe.outcome
    return arm, str(probe.batch_size), outcome, peak, probe.error or ABSENT
