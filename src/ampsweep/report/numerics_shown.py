"""The numerics of runs in documents: headroom in words, heat maps, and non-finite gradients."""

from collections.abc import Iterator, Mapping
from typing import Final

from ampsweep.analysis.headroom import headroom_of
from ampsweep.records.files import RecordError
from ampsweep.records.numerics import NUMERICS_NAME, RunNumerics, TensorKind
from ampsweep.report.document import Block, Item, Prose, Section, items_of
from ampsweep.report.figures.magnitude_map import magnitude_map
from ampsweep.report.tables import Cell, Column, Row, Table, value_cell
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import as_sentence

_TITLES: Final[dict[TensorKind, tuple[str, str]]] = {
    "activation": ("Activations", "Does what modules return fit into the format?"),
    "activation_gradient": ("Gradients of activations", "Do gradients overflow or vanish on their way back?"),
    "gradient": ("Gradients of parameters", "Do parameters get their gradients?"),
    "weight": ("Weights", "Do weights fit into the format that they are cast to?"),
    "update": ("Updates", "How large are the steps that parameters take?"),
}
"""Kind of tensor -> title and question of its map."""
MAP_NOTE: Final = (
    "Each row is a layer, in the order of the model; the colour is the share of its elements other than zero whose "
    "magnitude is a power of two or up to twice that. Choose a format in the legend to draw its range."
)


def numerics_sections(workload: WorkloadData) -> Iterator[Section]:
    """The numerics of each arm's first run that recorded them."""
    for arm in workload.compared.names:
        runs = sorted(workload.runs_of(arm), key=lambda run: run.seed)
        run = next((run for run in runs if (run.directory / NUMERICS_NAME).is_file()), None)
        if run is not None:
            title = f"{workload.compared.title}: {arm}, seed {run.seed}"
            try:
                blocks = numerics_blocks(RunNumerics.read(run.directory))
            except RecordError as error:
                blocks = (Prose(as_sentence(str(error)), "note"),)
            yield Section(title=title, blocks=blocks, arm=arm, folded=True)


def numerics_blocks(numerics: RunNumerics, faults: Mapping[str, int] | None = None) -> tuple[Block, ...]:
    """The headroom, the heat maps and the non-finite gradients of one run.

    Args:
        faults: format -> number of the doctor's finding that a training loses values or digits in it. The format fails
            even if the results of layers fit into it.
    """
    numbers, rooms = faults or {}, headroom_of(numerics).values()
    sentences = [room.given_finding(numbers[of]) if (of := room.format) in numbers else room.sentence for room in rooms]
    drawn = (magnitude_map(numerics, kind, title=title, question=asked) for kind, (title, asked) in _TITLES.items())
    maps = [figure for figure in drawn if figure is not None]
    return (
        *items_of(Item(as_sentence(sentence)) for sentence in sentences),
        *_nonfinite(numerics),
        *([Prose(MAP_NOTE, "note")] if maps else []),
        *maps,
    )


def _nonfinite(numerics: RunNumerics) -> Iterator[Table]:
    if not numerics.nonfinite_gradients:
        return
    rows = (
        Row((Cell(name), value_cell(count, str), value_cell(numerics.first_nonfinite.get(name, 0), str)))
        for name, count in numerics.nonfinite_gradients.items()
    )
    counted = ("skipped steps with inf or NaN in its gradient", "the first in backward")
    yield Table(
        key="nonfinite_gradients",
        title="Parameters with inf or NaN in their gradients, in backward order",
        columns=(Column("parameter"), *(Column(title, numeric=True) for title in counted)),
        rows=tuple(rows),
    )
