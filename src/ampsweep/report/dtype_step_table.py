"""The steps away from float32 as a table of texts for every renderer."""

from collections.abc import Sequence

from ampsweep.analysis.dtype_steps import DtypeStep
from ampsweep.analysis.statistics import Estimate
from ampsweep.report.columns import ABSENT
from ampsweep.report.estimate_text import estimate, ratio_figure
from ampsweep.report.sentences.dtype_steps import changes
from ampsweep.report.table import Table, without_empty_columns
from ampsweep.text import num_bytes, percent

_HEADERS = ("from", "to", "changes", "speed", "to the loss", "memory saved", "loss gap")
_NUMERIC = (False, False, False, True, True, True, True)


def dtype_step_table(steps: Sequence[DtypeStep]) -> Table:
    """A step a row, each figure with its interval; a column without any figure is left out."""
    rows = tuple(
        (
            one.before,
            one.after,
            changes(one),
            ABSENT if one.speedup is None else ratio_figure(one.speedup),
            ABSENT if one.gain is None else ratio_figure(one.gain),
            _memory(one),
            ABSENT if one.loss_gap is None else _gap(one.loss_gap),
        )
        for one in steps
    )
    return without_empty_columns(Table(_HEADERS, _NUMERIC, rows))


def _memory(of: DtypeStep) -> str:
    saved, share = of.memory_saved_bytes, of.memory_saved_pct
    if saved is None or share is None:
        return ABSENT
    _, ends = estimate(share)
    return f"{num_bytes(saved.value)} ({percent(share.value)}{'' if ends is None else f' [{ends[0]}, {ends[1]}]'})"


def _gap(of: Estimate) -> str:
    if of.exact and of.value == 0:
        return "0"
    value, ends = estimate(of, digits=2, sign=True)
    return value if ends is None else f"{value} [{ends[0]}, {ends[1]}]"
