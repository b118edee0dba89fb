"""Changes of precision in the middle of a training, as tables of texts for every renderer."""

from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.seam_comparison import Seam, SeamComparison
from ampsweep.analysis.statistics import Spread
from ampsweep.report.columns import ABSENT, Cell
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.report.sentences.seams import position, spread
from ampsweep.report.table import Table

SAVED_IN: Final = "saved in"
RESUMED_IN: Final = "resumed in"


def matrix(found: SeamComparison) -> tuple[tuple[str, ...], list[tuple[str, list[Cell]]]]:
    """The arms of the columns, and by row the arm that was saved and its cells: the jump of the training loss.

    Arms without any figure (those that the device cannot do) are left out, unless nothing else is there.
    """
    known = [one for one in found.seams if one.loss_jump is not None] or list(found.seams)
    rows = [arm for arm in found.saved_in if any(one.saved_in == arm for one in known)]
    columns = tuple(arm for arm in found.resumed_in if any(one.resumed_in == arm for one in known))
    usual = _usual_n(known)
    return columns, [(row, [_cell(found.of(row, column), usual) for column in columns]) for row in rows]


def matrix_table(found: SeamComparison) -> Table:
    """The same as texts, for documents."""
    columns, rows = matrix(found)
    texts = tuple((arm, *(_in_one(cell) for cell in cells)) for arm, cells in rows)
    return Table((f"{SAVED_IN} \\ {RESUMED_IN}", *columns), (False, *(True for _ in columns)), texts)


def seams_table(found: SeamComparison) -> Table:
    """Every pair of arms with all of its figures, a row each."""
    headers = (
        *(SAVED_IN, RESUMED_IN, "jump of the training loss", "of the val loss", "gap of the val loss at the end"),
        *("then", "skipped steps", "n", "status"),
    )
    numeric = (False, False, True, True, True, False, True, True, False)
    return Table(headers, numeric, tuple(_row(one) for one in found.seams))


def _row(one: Seam) -> tuple[str, ...]:
    figures = (_in_one(_figure(value)) for value in (one.loss_jump, one.val_loss_jump, one.final_gap))
    skipped = ABSENT if one.skipped_steps is None else str(one.skipped_steps)
    n = 0 if one.loss_jump is None else one.loss_jump.n
    return one.saved_in, one.resumed_in, *figures, position(one), skipped, str(n), statuses(one.statuses)


def _cell(one: Seam | None, usual_n: int) -> Cell:
    if one is None:
        return Cell(ABSENT)
    if one.loss_jump is None:
        return Cell(statuses(one.statuses))
    shown = _figure(one.loss_jump)
    other_n = "" if one.loss_jump.n == usual_n else f"n={one.loss_jump.n}"
    return Cell(shown.value, "; ".join(part for part in (shown.detail, other_n) if part))


def _figure(of: Spread | None) -> Cell:
    return Cell(*spread(of))


def _in_one(cell: Cell) -> str:
    return f"{cell.value} ({cell.detail})" if cell.detail else cell.value


def _usual_n(seams: Sequence[Seam]) -> int:
    """The n of most cells."""
    counts = [one.loss_jump.n for one in seams if one.loss_jump is not None]
    return max(set(counts), key=counts.count) if counts else 0
