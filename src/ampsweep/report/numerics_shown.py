"""The numerics of runs as documents show them: the headroom in words, heat maps, and where values were not finite."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ampsweep.analysis.headroom import headroom_of
from ampsweep.record.files import RecordError
from ampsweep.record.numerics import NUMERICS_NAME, RunNumerics, TensorKind
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
"""Title and question of the map of each kind of tensor."""
_NO_FAULTS: Final[Mapping[str, int]] = {}
MAP_NOTE: Final = (
    "Each row is a layer, in the order of the model; the colour is the share of its elements other than zero whose "
    "magnitude is a power of two or up to twice that. Choose a format in the legend to draw its range."
)


def numerics_sections(workload: WorkloadData) -> Iterator[Section]:
    """The numerics of each arm: those of its first run that looked at them."""
    for arm in workload.names:
        runs = sorted(workload.runs_of(arm), key=lambda run: run.seed)
        run = next((run for run in runs if (run.directory / NUMERICS_NAME).is_file()), None)
        if run is not None:
            yield Section(
                title=f"{workload.compared.title}: {arm}, seed {run.seed}",
                blocks=_read(run.directory),
                arm=arm,
                folded=True,
            )


def _read(directory: Path) -> tuple[Block, ...]:
    try:
        return numerics_blocks(RunNumerics.read(directory))
    except RecordError as error:
        return (Prose(as_sentence(str(error)), "note"),)


def numerics_blocks(numerics: RunNumerics, faults: Mapping[str, int] = _NO_FAULTS) -> tuple[Block, ...]:
    """The numerics of one run, or of a training with its faults: headroom, heat maps, non-finite gradients.

    Args:
        faults: formats in which an operator makes inf or NaN, so that they do not work though layers return what fits,
            with the number of the doctor's finding.
    """
    headroom = headroom_of(numerics)
    told = (
        one.unless_mended(faults[one.format]) if one.format in faults else one.sentence for one in headroom.values()
    )
    drawn = (
        magnitude_map(numerics, kind, title=title, question=question) for kind, (title, question) in _TITLES.items()
    )
    maps = [figure for figure in drawn if figure is not None]
    return (
        *items_of(Item(as_sentence(one)) for one in told),
        *_nonfinite(numerics),
        *([Prose(MAP_NOTE, "note")] if maps else []),
        *maps,
    )


def _nonfinite(numerics: RunNumerics) -> Iterator[Table]:
    """The parameters whose gradients were not finite on skipped steps, in backward order."""
    if numerics.nonfinite_gradients:
        rows = (
            Row((Cell(name), value_cell(count, str), value_cell(numerics.first_nonfinite.get(name, 0), str)))
            for name, count in numerics.nonfinite_gradients.items()
        )
        yield Table(
            key="nonfinite_gradients",
            title="Parameters with inf or NaN in their gradients, in backward order",
            columns=(
                Column("parameter"),
                Column("skipped steps with inf or NaN in its gradient", numeric=True),
                Column("the first in backward", numeric=True),
            ),
            rows=tuple(rows),
        )
