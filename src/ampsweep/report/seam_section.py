"""Trainings that change their precision in the middle, as a section of a comparison."""

from ampsweep.analysis.run_findings import statuses_text
from ampsweep.analysis.seam_comparison import Seam, SeamComparison
from ampsweep.report.cells import spread_cell
from ampsweep.report.document import Item, Items, Prose, Section
from ampsweep.report.tables import Cell, Column, Row, Table
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
            Items(tuple(Item(as_sentence(line)) for line in found.lines)),
            Section(title="All figures", blocks=(_figures(found),), folded=True),
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


def _figures(found: SeamComparison) -> Table:
    rows = [
        Row(
            (
                *(Cell(one.saved_in), Cell(one.resumed_in)),
                *(spread_cell(value, _signed) for value in (one.loss_jump, one.val_loss_jump, one.final_gap)),
                Cell(one.closed_text),
                Cell() if one.skipped_steps is None else Cell(str(one.skipped_steps), one.skipped_steps),
                Cell(str(one.num_runs), one.num_runs),
                Cell(statuses_text(one.statuses)),
            ),
            arm=one.resumed_in,
        )
        for one in found.seams
    ]
    columns = (
        *(Column("saved in"), Column("resumed in"), Column("jump of the training loss", "loss_jump", numeric=True)),
        *(
            Column("of the val loss", "val_loss_jump", numeric=True),
            Column("gap at the end", "final_gap", numeric=True),
        ),
        *(Column("then"), Column("skipped steps", "skipped_steps", numeric=True), Column("runs", numeric=True)),
        Column("status"),
    )
    return Table(key="seams", columns=columns, rows=tuple(rows))


def _signed(value: float) -> str:
    return signed(value, 2)
