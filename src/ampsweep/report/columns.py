"""The columns of a comparison table: header, unit, text of a cell, and the explanation of its figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.statistics import Estimate, Spread
from ampsweep.analysis.step_limits import (
    MIN_LAUNCH_SHARE,
    MIN_US_PER_OPERATOR_ACCELERATOR,
    MIN_US_PER_OPERATOR_CPU,
    MIN_UTILIZATION_PCT,
    MIN_WAIT_SHARE,
)
from ampsweep.report.estimate_text import estimate, ratio_estimate
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.text import loss, milliseconds, num_bytes, number, percent

ABSENT: Final = "-"


@dataclass(frozen=True)
class Cell:
    """The content of a cell: the figure, and below or after it a detail (interval, share, spread), in parts at '; '."""

    value: str
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """One column. `explanation` says how its figure was taken, with what its detail is; empty for plain facts."""

    header: str
    render: Callable[[ArmComparison], Cell]
    explanation: str = ""
    numeric: bool = True
    optional: bool = False
    """True if the column is left out of a table in which no arm has a value."""
    rank: int = 0
    """The order in which columns are dropped if a table has no room: the highest rank first, rank 0 never."""


def columns_for(arms: Sequence[ArmComparison]) -> list[Column]:
    """The columns of a table of `arms`."""
    return [
        column for column in COLUMNS if not column.optional or any(column.render(arm).value != ABSENT for arm in arms)
    ]


def _step_time(arm: ArmComparison) -> Cell:
    if arm.step_ms is None:
        return Cell(ABSENT)
    return Cell(milliseconds(arm.step_ms), _there(arm, "step_ms", milliseconds))


def _speedup(arm: ArmComparison) -> Cell:
    if arm.speedup is None:
        return Cell(ABSENT)
    value, ends = ratio_estimate(arm.speedup)
    return Cell(f"{value}x", _parts(_details(arm.speedup, ends, arm.num_pairs), _unchecked(arm)))


def _unchecked(arm: ArmComparison) -> str:
    if arm.num_unchecked == arm.num_timed:
        return "unchecked" if arm.num_timed else ""
    return f"{arm.num_unchecked} of {arm.num_timed} unchecked" if arm.num_unchecked else ""


def _limited_by(arm: ArmComparison) -> Cell:
    each = "" if arm.us_per_operator is None else f"{number(arm.us_per_operator, 2)} us/op"
    kinds = ", ".join(limit.kind for limit in arm.limits)
    return Cell(kinds or ABSENT, each if kinds else "")


def _peak_memory(arm: ArmComparison) -> Cell:
    if arm.peak_memory_bytes is None:
        return Cell(ABSENT)
    return Cell(num_bytes(arm.peak_memory_bytes), _there(arm, "peak_memory_bytes", num_bytes))


def _memory_saved(arm: ArmComparison) -> Cell:
    if arm.memory_saved_bytes is None or arm.memory_saved_pct is None:
        return Cell(ABSENT)
    _, ends = estimate(arm.memory_saved_pct)
    share = percent(arm.memory_saved_pct.value) if ends is None else f"[{ends[0]}, {ends[1]}]%"
    return Cell(num_bytes(arm.memory_saved_bytes.value), share)


def _val_loss(arm: ArmComparison) -> Cell:
    return _spread(arm.val_loss, loss, _there(arm, "val_loss", loss))


def _val_accuracy(arm: ArmComparison) -> Cell:
    return _spread(arm.val_accuracy, _share, _there(arm, "val_accuracy", _share))


def _loss_gap(arm: ArmComparison) -> Cell:
    if arm.loss_gap is not None and arm.loss_gap.value == 0 and arm.loss_gap.exact:
        return Cell("0", "identical")
    if arm.loss_gap is None:
        return Cell(ABSENT)
    value, ends = estimate(arm.loss_gap, digits=2, sign=True)
    return Cell(value, _details(arm.loss_gap, ends, arm.num_pairs))


def _autocast_penalty(arm: ArmComparison) -> Cell:
    if arm.autocast_penalty is None:
        return Cell(ABSENT)
    value, ends = estimate(arm.autocast_penalty, digits=2, sign=True)
    return Cell(value, _details(arm.autocast_penalty, ends, arm.num_pairs))


def _skipped_steps(arm: ArmComparison) -> Cell:
    return Cell(ABSENT if arm.skipped_steps is None else str(arm.skipped_steps))


def _pairs(arm: ArmComparison) -> Cell:
    return Cell(ABSENT if arm.is_baseline else str(arm.num_pairs))


def _details(of: Estimate, ends: tuple[str, str] | None, num_pairs: int) -> str:
    """The interval, and the n where it is not that of the row."""
    interval = [] if ends is None else [f"[{ends[0]}, {ends[1]}]"]
    return " ".join([*interval, *([] if of.n == num_pairs else [f"n={of.n}"])])


def _spread(of: Spread | None, text: Callable[[float], str], there: str) -> Cell:
    if of is None:
        return Cell(ABSENT)
    return Cell(text(of.mean), _parts("" if of.sd is None else f"sd {text(of.sd)}", there))


def _there(arm: ArmComparison, figure: str, text: Callable[[float], str]) -> str:
    """The baseline's figure in the arm's pairs, where it is not that of the baseline's row."""
    value = None if arm.baseline_there is None else getattr(arm.baseline_there, figure)
    return "" if value is None else f"baseline {text(value)}"


def _share(value: float) -> str:
    return f"{value:.4f}"


def _parts(*details: str) -> str:
    return "; ".join(detail for detail in details if detail)


ARM: Final = Column("arm", lambda arm: Cell(arm.arm), numeric=False)
COLUMNS: Final = (
    ARM,
    Column(
        "step time",
        _step_time,
        "each run's median time of a step after warm-up, geometric mean over the pairs of the speedup; evaluation and "
        "checkpoints are outside. The baseline's row is of all its runs in pairs, here as for peak memory and losses; "
        "'baseline' in another row is its figure in that arm's pairs, where those are fewer",
        rank=2,
    ),
    Column(
        "speedup",
        _speedup,
        "step time of the baseline over that of the arm, geometric mean over pairs of uncontaminated runs (above 1x is "
        "faster) [95% t-interval of the mean log ratio]; unchecked: of runs of these pairs nothing tells whether "
        "anything else slowed them down",
    ),
    Column(
        "limited by",
        _limited_by,
        "limits of the arm's step that its arithmetic does not move: launching, if a step has less than "
        f"{MIN_US_PER_OPERATOR_CPU:.0f} us for each of its operators on a CPU, "
        f"{MIN_US_PER_OPERATOR_ACCELERATOR:.0f} us on an accelerator (or if launching, where it was measured, "
        f"takes {100 * MIN_LAUNCH_SHARE:.0f}% of a step); data, if waiting for it takes "
        f"{100 * MIN_WAIT_SHARE:.0f}% or more of a step and the device is not known to be busy meanwhile; host, if an "
        f"accelerator is idle in more than {100 - MIN_UTILIZATION_PCT:.0f}% of the time for neither reason. us/op: "
        "step time over operators",
        numeric=False,
        optional=True,
        rank=2,
    ),
    Column(
        "peak memory",
        _peak_memory,
        "peak of allocated tensor bytes after warm-up, mean over pairs (allocator statistics on an accelerator, the "
        "tensors of the traced step with the most on a CPU)",
        rank=3,
    ),
    Column(
        "memory saved",
        _memory_saved,
        "peak of the baseline minus that of the arm, mean over pairs (negative: the arm needs more), with its share of "
        "the baseline's peak, or where pairs differ [the 95% t-interval of that share]",
    ),
    Column(
        "val loss",
        _val_loss,
        "validation loss at the end of training, mean over the pairs of the loss gap, with its standard deviation over "
        "seeds; runs cut short have none",
        rank=4,
    ),
    Column(
        "loss gap",
        _loss_gap,
        "final validation loss of the arm minus that of the baseline, mean over pairs (positive is worse) "
        "[95% t-interval]",
    ),
    Column(
        "val accuracy",
        _val_accuracy,
        "share of validation items classified correctly at the end of training, mean over seeds, with its standard "
        "deviation over seeds",
        optional=True,
        rank=5,
    ),
    Column(
        "autocast penalty",
        _autocast_penalty,
        "validation loss under autocast minus that in full precision, of the same final weights, mean over the arm's "
        "runs (positive: autocast makes the evaluation worse) [95% t-interval]",
        optional=True,
        rank=6,
    ),
    Column(
        "skipped steps",
        _skipped_steps,
        "steps the gradient scaler skipped for non-finite gradients, total over the arm's runs",
        rank=7,
    ),
    Column("status", lambda arm: Cell(statuses(arm.statuses)), "how the arm's runs ended", numeric=False, rank=1),
    Column(
        "n",
        _pairs,
        "pairs with the baseline: runs of one seed that differ in nothing but precision; fewer than 3 give no interval",
    ),
)
