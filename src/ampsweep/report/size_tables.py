"""A series of sizes as a table of texts for every renderer: a row a size, the speed and memory of each arm there; of
strategies a row an arm of each.
"""

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison
from ampsweep.analysis.size_series import SizeSeries
from ampsweep.report.columns import ABSENT
from ampsweep.report.estimate_text import ratio_figure
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.report.sentences.sizes import multiple_cells, size_name, size_text, step_cells
from ampsweep.report.table import Table, without_empty_columns
from ampsweep.text import loss, milliseconds, num_bytes, percent


def size_table(series: SizeSeries, comparison: Comparison) -> Table:
    """The baseline's step time, and of every other arm its speedup, with its pairs, and the memory that it saves.

    Of words, such as strategies, each arm at each of them, beside itself at the first one.
    """
    if series.in_words:
        return _side_by_side(series, comparison)
    arms = [{arm.arm: arm for arm in comparison.workloads[place].arms} for place in series.workloads]
    others = [name for name in dict.fromkeys(name for there in arms for name in there) if name != comparison.baseline]
    kinds = multiple_cells(series)
    headers = [size_name(series), *(["multiple of 8"] if kinds else []), f"{comparison.baseline} step time"]
    headers += [f"{arm} {figure}" for arm in others for figure in ("speedup", "memory saved")]
    rows = tuple(
        (
            size_text(size),
            *([kinds[index]] if kinds else []),
            _step_time(there.get(comparison.baseline)),
            *(cell for arm in others for cell in _cells(there.get(arm))),
        )
        for index, (size, there) in enumerate(zip(series.sizes, arms, strict=True))
    )
    return Table(tuple(headers), (True,) * len(headers), rows)


def _step_time(arm: ArmComparison | None) -> str:
    return ABSENT if arm is None or arm.step_ms is None else milliseconds(arm.step_ms)


def _cells(arm: ArmComparison | None) -> tuple[str, str]:
    if arm is None:
        return ABSENT, ABSENT
    if list(arm.statuses) != ["completed"] and arm.speedup is None and arm.memory_saved_pct is None:
        return statuses(arm.statuses), ABSENT
    speed = ABSENT if arm.speedup is None else f"{ratio_figure(arm.speedup)}, n={arm.speedup.n}"
    return speed, ABSENT if arm.memory_saved_pct is None else percent(arm.memory_saved_pct.value)


def _side_by_side(series: SizeSeries, comparison: Comparison) -> Table:
    first = size_text(series.sizes[0])
    steps = {(one.size, one.arm): one for one in series.steps}
    there = [(size, comparison.workloads[place]) for size, place in zip(series.sizes, series.workloads, strict=True)]
    rows = []
    for arm in dict.fromkeys(arm.arm for _, workload in there for arm in workload.arms):
        for size, workload in there:
            found = next((one for one in workload.arms if one.arm == arm), None)
            if found is not None:
                step = steps.get((size, arm))
                against = (ABSENT,) * 3 if step is None else step_cells(step)
                samples = workload.facts.get("global_batch_size")
                rows.append((arm, size_text(size), ABSENT if samples is None else str(samples), *_own(found), *against))
    headers = (
        *("arm", size_name(series), "samples a step", "ranks", "peak memory", "spread", "step time"),
        *("waiting", "reduced a step", "val loss"),
        *(f"{figure} of {first}" for figure in ("throughput",)),
        *(f"{figure} against {first}" for figure in ("memory saved", "loss gap")),
    )
    alike = {"samples a step", "ranks", "spread"}  # said only where they differ
    told = {header for place, header in enumerate(headers) if len({row[place] for row in rows}) > 1}
    table = Table(headers, (False, False, *(True,) * (len(headers) - 2)), tuple(rows))
    return without_empty_columns(table.without(alike - told))


def _own(arm: ArmComparison) -> tuple[str, ...]:
    """The arm's own figures: those of the fullest and of the slowest rank."""
    ranks = arm.ranks
    spread = None if ranks is None else ranks.memory_spread_bytes
    waiting = None if ranks is None else ranks.communication_ms
    reduced = None if ranks is None else ranks.reduced_mib
    return (
        "1" if ranks is None else str(len(ranks.rows)),
        ABSENT if arm.peak_memory_bytes is None else num_bytes(arm.peak_memory_bytes),
        ABSENT if spread is None else num_bytes(spread),
        _step_time(arm),
        ABSENT if waiting is None else milliseconds(waiting),
        ABSENT if reduced is None else num_bytes(reduced * 2**20),
        ABSENT if arm.val_loss is None else loss(arm.val_loss.mean),
    )
