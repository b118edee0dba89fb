"""A series of sizes as a table of texts for every renderer: a row a size, the speed and memory of each arm there."""

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison
from ampsweep.analysis.size_series import SizeSeries
from ampsweep.report.columns import ABSENT
from ampsweep.report.estimate_text import ratio_figure
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.report.sentences.sizes import multiple_cells, size_name, size_text
from ampsweep.report.table import Table
from ampsweep.text import milliseconds, percent


def size_table(series: SizeSeries, comparison: Comparison) -> Table:
    """The baseline's step time, and of every other arm its speedup, with its pairs, and the memory that it saves."""
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
