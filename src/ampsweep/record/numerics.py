"""The numerics of a run, `numerics.json`: the magnitudes of its layers' values, in a compact form."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from ampsweep.record.files import write_atomically
from ampsweep.record.parts import as_json
from ampsweep.record.reading import read_object

NUMERICS_NAME: Final = "numerics.json"
NUMERICS_SCHEMA: Final = 1

TensorKind = Literal["activation", "activation_gradient", "gradient", "weight", "update"]
"""`activation`: what a module returns; `activation_gradient`: the gradient of that; `gradient`: that of a parameter;
`update`: a parameter after an optimizer step less before."""
TENSOR_KINDS: Final[tuple[TensorKind, ...]] = get_args(TensorKind)
INPUT_LAYER: Final = "(input)"
"""The layer of what the model itself is called with, an `activation`."""


@dataclass(kw_only=True)
class Magnitudes:
    """The magnitudes of one tensor over all the steps in which it was looked at; gradients are without the scale."""

    layer: str
    """Name of a module, or of a parameter (`gradient`, `weight`, `update`)."""
    kind: TensorKind
    dtype: str
    """As torch writes it."""
    num_steps: int = 0
    num_elements: int = 0
    """Elements that were counted: all, or an even selection of them."""
    num_zeros: int = 0
    num_nonfinite: int = 0
    """These are in no other figure."""
    max_abs: float = 0.0
    """The largest finite magnitude of all elements."""
    first_exponent: int = 0
    counts: list[int] = field(default_factory=list)
    """`counts[i]` elements had a magnitude in [2**e, 2**(e + 1)) with e = first_exponent + i."""
    unchanged_pct: float | None = None
    """The share of a parameter's elements with a gradient that applied steps left as they were; None but of updates."""


@dataclass(kw_only=True)
class RunNumerics:
    schema: int = NUMERICS_SCHEMA
    steps: list[int] = field(default_factory=list)
    """Steps in which the layers were looked at."""
    scale: float | None = None
    """The scale in the last of them; None without scaler."""
    cost_pct: float | None = None
    """Time that looking took, over that of all steps."""
    magnitudes: list[Magnitudes] = field(default_factory=list)
    """By kind in the order of `TENSOR_KINDS`, by layer as the model lists them."""
    outside: list[str] = field(default_factory=list)
    """Modules and parameters whose values no operator under autocast makes or takes in low precision; none: unknown."""
    nonfinite_gradients: dict[str, int] = field(default_factory=dict)
    """By parameter, in the order in which backward reaches them: skipped steps in which its gradient was not finite."""
    first_nonfinite: dict[str, int] = field(default_factory=dict)
    """By parameter: skipped steps in which it was the first in backward order."""

    def write(self, directory: Path) -> None:
        """Write `numerics.json` into `directory`, atomically."""
        write_atomically(directory / NUMERICS_NAME, json.dumps(as_json(self), allow_nan=False) + "\n")

    @staticmethod
    def read(directory: Path) -> "RunNumerics":
        """Read the numerics of the run in `directory`; raises as `read_object` does."""
        return read_object(directory / NUMERICS_NAME, "numerics", NUMERICS_SCHEMA, RunNumerics)
