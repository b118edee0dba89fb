"""The numerics of a run, `numerics.json`: compact magnitudes of its layers' values."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from ampsweep.records.files import write_atomically
from ampsweep.records.reading import read_object
from ampsweep.records.sections import as_json

NUMERICS_NAME: Final = "numerics.json"
NUMERICS_SCHEMA: Final = 1

TensorKind = Literal["activation", "activation_gradient", "gradient", "weight", "update"]
"""`activation`: output of a module, `activation_gradient`: its gradient, `gradient`: of a parameter, `update`: change
of a parameter in an optimizer step."""
TENSOR_KINDS: Final[tuple[TensorKind, ...]] = get_args(TensorKind)
INPUT_LAYER: Final = "(input)"  # the layer of the model's input, an `activation`


@dataclass(kw_only=True)
class Magnitudes:
    """The magnitudes of a tensor over all steps that examined it; gradients are unscaled."""

    layer: str  # a module, or a parameter (`gradient`, `weight`, `update`)
    kind: TensorKind
    dtype: str  # as torch writes it
    num_steps: int = 0
    num_elements: int = 0  # counted elements: all, or an even selection
    num_zeros: int = 0
    num_nonfinite: int = 0  # these are in no other figure
    max_abs: float = 0.0  # largest finite magnitude of all elements
    first_exponent: int = 0
    counts: list[int] = field(default_factory=list)  # [i]: elements in [2**e, 2**(e + 1)), e = first_exponent + i
    unchanged_pct: float | None = None  # updates only: elements with a gradient that applied steps left unchanged


@dataclass(kw_only=True)
class RunNumerics:
    schema: int = NUMERICS_SCHEMA
    steps: list[int] = field(default_factory=list)  # examined steps
    scale: float | None = None  # in the last of them; None without a scaler
    cost_pct: float | None = None  # time of examining, over that of all steps
    magnitudes: list[Magnitudes] = field(default_factory=list)  # by kind (`TENSOR_KINDS`), then in the model's order
    outside: list[str] = field(default_factory=list)  # modules and parameters without a low-precision operator
    nonfinite_gradients: dict[str, int] = field(default_factory=dict)
    """Skipped steps with a non-finite gradient, by parameter in backward order."""
    first_nonfinite: dict[str, int] = field(default_factory=dict)
    """Skipped steps in which the parameter was the first in backward order."""

    def write(self, directory: Path) -> None:
        write_atomically(directory / NUMERICS_NAME, json.dumps(as_json(self), allow_nan=False) + "\n")

    @staticmethod
    def read(directory: Path) -> "RunNumerics":
        return read_object(directory / NUMERICS_NAME, "numerics", NUMERICS_SCHEMA, RunNumerics)
