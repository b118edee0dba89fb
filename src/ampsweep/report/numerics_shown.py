"""The numerics of runs as documents show them: the headroom in words, heat maps, and where values were not finite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.headroom import headroom_of
from ampsweep.record.diagnosis import Diagnosis
from ampsweep.record.files import RecordError
from ampsweep.record.numerics import NUMERICS_NAME, TENSOR_KINDS, RunNumerics, TensorKind
from ampsweep.report.figures.figure import PanelFigure
from ampsweep.report.figures.magnitude_map import magnitude_map
from ampsweep.report.sentences.headroom import headroom_lines
from ampsweep.report.table import Table, figures_table
from ampsweep.report.workload_data import WorkloadData

TITLES: Final[dict[TensorKind, tuple[str, str]]] = {
    "activation": ("Activations", "Does what modules return fit into the format?"),
    "activation_gradient": ("Gradients of activations", "Do gradients overflow or vanish on their way back?"),
    "gradient": ("Gradients of parameters", "Do parameters get their gradients?"),
    "weight": ("Weights", "Do weights fit into the format that they are cast to?"),
    "update": ("Updates", "How large are the steps that parameters take?"),
}
"""Title and question of the map of each kind of tensor."""
MAP_NOTE: Final = (
    "Each row is a layer, in the order of the model; the colour is the share of its elements other than zero whose "
    "magnitude is a power of two or up to twice that. Choose a format in the legend to draw its range."
)


@dataclass(frozen=True)
class NumericsShown:
    """The numerics of one run."""

    lines: tuple[str, ...]
    """The headroom, a sentence a format."""
    maps: tuple[tuple[TensorKind, PanelFigure], ...]
    nonfinite: Table | None
    """Parameters whose gradients were not finite on skipped steps; None without any."""
    problem: str | None = None
    """A clause on why nothing is shown."""


@dataclass(frozen=True)
class WorkloadNumerics:
    """The numerics of a workload's arms: of the first run of each that looked at them."""

    data: WorkloadData
    arms: tuple[tuple[str, int, NumericsShown], ...]
    """Arm, seed, and what is shown."""


def numerics_of(workloads: Sequence[WorkloadData]) -> tuple[WorkloadNumerics, ...]:
    """Read the numerics of the workloads' runs; those without any are left out."""
    found = []
    for data in workloads:
        arms = tuple(shown for arm in data.names if (shown := _first(data, arm)) is not None)
        if arms:
            found.append(WorkloadNumerics(data, arms))
    return tuple(found)


def show_numerics(numerics: RunNumerics, diagnosis: Diagnosis | None = None) -> NumericsShown:
    """Draw the numerics of one run, or of a training with its diagnosis."""
    headroom = headroom_of(numerics, numerics.scale)
    drawn = [(kind, magnitude_map(numerics, kind, headroom)) for kind in TENSOR_KINDS]
    return NumericsShown(
        lines=tuple(headroom_lines(headroom, diagnosis)),
        maps=tuple((kind, figure) for kind, figure in drawn if isinstance(figure, PanelFigure)),
        nonfinite=_nonfinite(numerics),
    )


def _first(data: WorkloadData, arm: str) -> tuple[str, int, NumericsShown] | None:
    for run in sorted(data.runs_of(arm), key=lambda run: run.seed):
        if (run.directory / NUMERICS_NAME).is_file():
            try:
                return arm, run.seed, show_numerics(RunNumerics.read(run.directory))
            except RecordError as error:
                return arm, run.seed, NumericsShown((), (), None, problem=str(error))
    return None


def _nonfinite(numerics: RunNumerics) -> Table | None:
    if not numerics.nonfinite_gradients:
        return None
    rows: list[tuple[str, ...]] = [
        (name, str(count), str(numerics.first_nonfinite.get(name, 0)))
        for name, count in numerics.nonfinite_gradients.items()
    ]
    return figures_table("parameter", ["skipped steps with inf or NaN in its gradient", "the first in backward"], rows)
