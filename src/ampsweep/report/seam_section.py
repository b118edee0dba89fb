"""Trainings that change their precision in the middle, as a section of a comparison."""

from typing import Final

from ampsweep.analysis.run_findings import statuses_text
from ampsweep.analysis.seam_comparison import Seam, SeamComparison
from ampsweep.report.cells import spread_cell, value_cell
from ampsweep.report.document import Prose, Section, sentences
from ampsweep.report.tables import Cell, Column, Columns, Row, Table, table_of
from ampsweep.text import as_sentence, signed


def seam_section(found: SeamComparison) -> Section:
    """The answer, the jump of the training loss for every pair of arms, and all figures."""
    return Section(
        title=found.heading,
        kind="card",
        blocks=(
            Prose(found.sentence, "headline"),
            _matrix(found),
            Prose(as_sentence(found.explanation), "note"),
            sentences(found.lines),
            Section(
                title="All figures",
                blocks=(table_of("seams", _FIGURES, found.seams, lambda one: one.resumed_in),),
                folded=True,
            ),
        ),
        facts=found.facts,
    )


def _matrix(found: SeamComparison) -> Table:
    """The jump of the training loss, saved in the arm of the row and resumed in that of the column.

    Arms without any figure (those that the device cannot do) are left out, unless nothing else is there.
    """
    known = [one for one in found.seams if one.loss_jump is not None] or list(found.seams)
    rows = [arm for arm in found.saved_in if any(one.saved_in == arm for one in known)]
    columns = [arm for arm in found.resumed_in if any(one.resumed_in == arm for one in known)]
    counts = [one.loss_jump.n for one in known if one.loss_jump is not None]
    usual_n = max(set(counts), key=counts.count) if counts else 0
    return Table(
        key="jumps",
        columns=(Column("saved in \\ resumed in"), *(Column(arm, numeric=True) for arm in columns)),
        rows=tuple(
            Row((Cell(arm), *(_jump(found.of(arm, column), usual_n) for column in columns)), arm=arm) for arm in rows
        ),
    )


def _jump(one: Seam | None, usual_n: int) -> Cell:
    if one is None:
        return Cell()
    if one.loss_jump is None:
        return Cell(statuses_text(one.statuses))
    return spread_cell(one.loss_jump, _signed, "" if one.loss_jump.n == usual_n else f"n={one.loss_jump.n}")


def _signed(value: float) -> str:
    return signed(value, 2)


_FIGURES: Final[Columns[Seam]] = (
    (Column("saved in"), lambda one: Cell(one.saved_in)),
    (Column("resumed in"), lambda one: Cell(one.resumed_in)),
    (
        Column("jump of the training loss", "loss_jump", numeric=True),
        lambda one: spread_cell(one.loss_jump, _signed),
    ),
    (Column("of the val loss", "val_loss_jump", numeric=True), lambda one: spread_cell(one.val_loss_jump, _signed)),
    (Column("gap at the end", "final_gap", numeric=True), lambda one: spread_cell(one.final_gap, _signed)),
    (Column("then"), lambda one: Cell(one.closed_text)),
    (Column("skipped steps", "skipped_steps", numeric=True), lambda one: value_cell(one.skipped_steps, str)),
    (Column("runs", numeric=True), lambda one: value_cell(one.num_runs, str)),
    (Column("status"), lambda one: Cell(statuses_text(one.statuses))),
)
