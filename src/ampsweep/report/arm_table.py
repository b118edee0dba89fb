"""The arms of a workload as a table: each figure with its interval, and how it was taken."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.figure_keys import FigureKeys
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.run_findings import cannot_run, statuses_text
from ampsweep.analysis.step_limits import (
    MIN_LAUNCH_SHARE,
    MIN_US_PER_OPERATOR_ACCELERATOR,
    MIN_US_PER_OPERATOR_CPU,
    MIN_UTILIZATION_PCT,
    MIN_WAIT_SHARE,
    IdleDevice,
    SmallStep,
    StepLimit,
    WaitForData,
)
from ampsweep.report.tables import Cell, Column, Row, Table, Tone, count_cell, estimate_cell, spread_cell, value_column
from ampsweep.text import loss, milliseconds, num_bytes, number, percent

_STANDINGS: Final[dict[str, Tone]] = {"recommended": "good", "refused": "bad", "eligible": "even", "undecided": "open"}

_CellOf = Callable[[ArmComparison, Judgements | None], Cell]


def arms_tables(workload: WorkloadComparison) -> tuple[Table, Table]:
    """What a verdict is based on, and further figures: a row for each arm that can run here, the baseline's first."""
    of_arm, recommendation = {arm.arm: arm for arm in workload.verdict.arms}, workload.verdict.recommendation
    rows = []
    for arm in (arm for arm in workload.arms if not cannot_run(arm.statuses)):
        own = of_arm.get(arm.arm)
        standing = recommendation.standing(own) if arm.is_baseline or own is not None else None
        verdict = Cell() if standing is None else Cell(standing, standing, tone=_STANDINGS[standing])
        rows.append((arm, None if own is None else own.judgements, verdict))
    return figures_tables(rows, workload.keys)


def figures_tables(
    arms: Iterable[tuple[ArmComparison, Judgements | None, Cell]], keys: FigureKeys
) -> tuple[Table, Table]:
    """The figures that a verdict is based on, and further ones, with a row for each arm and its verdict; a word below a
    figure is the verdict of its interval."""
    rows = []
    for arm, judged, verdict in arms:
        name, *figures = (cell(arm, judged) for _, cell, _ in _FIGURES)
        rows.append(Row((name, verdict, *figures), arm=arm.arm))
    columns = [replace(column, title=keys.named(column.title)) for column, _, _ in _FIGURES]
    columns.insert(1, Column("verdict"))
    whole = Table(key="arms", columns=tuple(columns), rows=tuple(rows))
    further = [place for place, column in enumerate(columns) if column.key in _FURTHER]
    first = whole.of([place for place in range(len(columns)) if place not in further])
    return first, replace(whole.of([0, *further]), key="arms_further")


def methods(workloads: Sequence[WorkloadComparison]) -> Iterator[tuple[str, str]]:
    """The figures in the workloads' tables, each with how it was taken."""
    tables = (table.shown() for workload in workloads for table in arms_tables(workload) if table.rows)
    shown = {column.title for table in tables for column in table.columns}
    on_wandb = any(entry.run.record.taken_from for workload in workloads for entry in workload.runs)
    for keys in dict.fromkeys(workload.keys for workload in workloads):
        for column, _, explanation in _FIGURES:
            title = keys.named(column.title)
            if explanation and title in shown:
                shown.remove(title)
                is_other = title == keys.memory_words != column.title
                other = _OTHER_TIME if on_wandb and column.key == "step_ms" else _OTHER_MEMORY if is_other else None
                yield title, f"{other or keys.named(explanation)}."


def _speedup(arm: ArmComparison, judged: Judgements | None) -> Cell:
    if arm.disturbed_speedup is not None:
        cell = estimate_cell(arm.disturbed_speedup, "ratio", "disturbed", n=arm.num_pairs)
        return replace(cell, value=None, low=None, high=None, shown_only=True)
    return estimate_cell(arm.speedup, "ratio", _word(judged, "speed"), _unchecked(arm), n=arm.num_pairs)


def _step_time(arm: ArmComparison, _: Judgements | None) -> Cell:
    if arm.disturbed_step_ms is not None:
        return Cell(milliseconds(arm.disturbed_step_ms), detail="disturbed", shown_only=True)
    return Cell() if arm.step_ms is None else Cell(milliseconds(arm.step_ms), arm.step_ms)


def _unchecked(arm: ArmComparison) -> str:
    if arm.num_unchecked == arm.num_timed:
        return "unchecked" if arm.num_timed else ""
    return f"{arm.num_unchecked} of {arm.num_timed} unchecked" if arm.num_unchecked else ""


def _limited_by(arm: ArmComparison, judged: Judgements | None) -> Cell:
    kinds = ", ".join(_LIMITS[type(limit)] for limit in arm.limits)
    each = "" if arm.us_per_operator is None else f"{number(arm.us_per_operator, 2)} us/op"
    return Cell(kinds, detail=each) if kinds else Cell()


def _status(arm: ArmComparison, _: Judgements | None) -> Cell:
    text = statuses_text(arm.statuses)
    return Cell(value=text) if text == "completed" else Cell(text)  # a column only where any run ended otherwise


def _memory_saved(arm: ArmComparison, judged: Judgements | None) -> Cell:
    share = estimate_cell(arm.memory_saved_pct, "percent")
    return estimate_cell(arm.memory_saved_bytes, "bytes", _word(judged, "memory"), share.detail or share.text)


def _loss_gap(arm: ArmComparison, judged: Judgements | None) -> Cell:
    return estimate_cell(arm.loss_gap, "difference", _word(judged, "parity"), n=arm.num_pairs)


def _word(judged: Judgements | None, topic: str) -> str:
    word = getattr(judged, topic, "")
    return "" if word in ("too few pairs", "not measured") else word


def _value(
    title: str, key: str, text: Callable[[float], str], explanation: str = "", **flags: bool
) -> tuple[Column, _CellOf, str]:
    column, cell = value_column(title, key, text, **flags)
    return column, lambda arm, _: cell(arm), explanation


_OTHER_TIME: Final = "each run's time of a step, geometric mean over the pairs of the speedup; see step time on W&B"
_OTHER_MEMORY: Final = "mean over pairs; no peak of tensors was recorded, which would be less than this"
_FURTHER: Final = ("limited_by", "val_accuracy", "autocast_penalty", "skipped_steps", "status")
_LIMITS: Final[dict[type[StepLimit], str]] = {SmallStep: "launching", WaitForData: "data", IdleDevice: "host"}
_FIGURES: Final[Sequence[tuple[Column, _CellOf, str]]] = (
    (Column("arm"), lambda arm, _: Cell(arm.arm), ""),
    (
        Column("speedup", "speedup", numeric=True),
        _speedup,
        "step time of the baseline over that of the arm, geometric mean over pairs of uncontaminated runs (above 1x is "
        "faster) [95% interval of the mean log ratio]; unchecked: in runs of these pairs nothing could show whether "
        "other processes slowed them down",
    ),
    (
        Column("memory saved", "memory_saved_bytes", numeric=True),
        _memory_saved,
        "peak of the baseline minus that of the arm, mean over pairs (negative: the arm needs more), with its share of "
        "the baseline's peak, or where pairs differ [the 95% interval of that share]",
    ),
    (
        Column("loss gap", "loss_gap", numeric=True),
        _loss_gap,
        "final validation loss of the arm minus that of the baseline, mean over pairs (positive is worse) "
        "[95% interval]",
    ),
    (
        Column("n", "pairs", numeric=True),
        lambda arm, _: Cell() if arm.is_baseline else count_cell(arm.num_pairs),
        "pairs with the baseline: runs of one seed that differ in nothing but precision; fewer than 3 give no interval",
    ),
    (
        Column("step time", "step_ms", numeric=True, optional=True),
        _step_time,
        "each run's median time of a step after warm-up, geometric mean over the pairs of the speedup; evaluation and "
        "checkpoints are outside. The baseline's row is over all its runs in pairs, as for peak memory and losses",
    ),
    (
        Column("limited by", "limited_by", optional=True),
        _limited_by,
        "limits of the arm's step that its arithmetic does not move: launching, if a step has less than "
        f"{MIN_US_PER_OPERATOR_CPU:.0f} us for each of its operators on a CPU, "
        f"{MIN_US_PER_OPERATOR_ACCELERATOR:.0f} us on an accelerator (or if launching, where it was measured, "
        f"takes {100 * MIN_LAUNCH_SHARE:.0f}% of a step); data, if waiting for it takes "
        f"{100 * MIN_WAIT_SHARE:.0f}% or more of a step and the device is not known to be busy meanwhile; host, if an "
        f"accelerator is idle in more than {100 - MIN_UTILIZATION_PCT:.0f}% of the time for neither reason. us/op: "
        "step time over operators",
    ),
    _value(
        *("peak memory", "peak_memory_bytes", num_bytes),
        "peak of allocated tensor bytes after warm-up, mean over pairs (allocator statistics on an accelerator, the "
        "tensors of the traced step with the most on a CPU)",
    ),
    (
        Column("val loss", "val_loss", numeric=True),
        lambda arm, _: spread_cell(arm.val_loss, loss),
        "validation loss at the end of training, mean over the pairs of the loss gap, with its standard deviation over "
        "seeds; runs cut short have none",
    ),
    (
        Column("val accuracy", "val_accuracy", numeric=True, optional=True),
        lambda arm, _: spread_cell(arm.val_accuracy, lambda share: f"{share:.4f}"),
        "share of validation items classified correctly at the end of training, mean over seeds, with its standard "
        "deviation over seeds",
    ),
    (
        Column("autocast penalty", "autocast_penalty", numeric=True, optional=True),
        lambda arm, _: estimate_cell(arm.autocast_penalty, "difference", n=arm.num_pairs),
        "validation loss under autocast minus that in full precision, of the same final weights, mean over the arm's "
        "runs (positive: autocast makes the evaluation worse) [95% interval]",
    ),
    _value(
        *("skipped steps", "skipped_steps", lambda count: f"{count:.0f}"),
        "steps the gradient scaler skipped for non-finite gradients, total over the arm's runs",
        optional=True,
    ),
    (Column("status", "status", optional=True), _status, "how the arm's runs ended"),
    (
        Column("memory saved (%)", "memory_saved_pct", numeric=True, data_only=True),
        lambda arm, _: estimate_cell(arm.memory_saved_pct, "percent"),
        "",
    ),
    _value("loss gap (%)", "loss_gap_pct", percent, data_only=True),
    _value("predicted peak", "predicted_memory_bytes", num_bytes, data_only=True),
    _value("prediction error (%)", "prediction_error_pct", percent, data_only=True),
    _value("predicted step", "predicted_step_ms", milliseconds, data_only=True),
    _value("step prediction error (%)", "step_error_pct", percent, data_only=True),
    (
        Column("disturbed speedup", "disturbed_speedup", numeric=True, data_only=True),
        lambda arm, _: estimate_cell(arm.disturbed_speedup, "ratio"),
        "",
    ),
)
"""Columns, each with its cell and how the figure was taken."""
