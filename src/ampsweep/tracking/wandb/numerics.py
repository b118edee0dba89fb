"""The numerics of a run on W&B: a histogram of each kind of tensor, and a table of all layers."""

from pathlib import Path
from typing import Any, Final

from ampsweep.record.files import RecordError
from ampsweep.record.numerics import TENSOR_KINDS, Magnitudes, RunNumerics

_MAX_BINS: Final = 512
"""The most that a histogram on W&B may have."""
_COLUMNS: Final = (
    *("kind", "layer", "dtype", "steps", "elements", "zeros", "nonfinite", "max_abs"),
    *("lowest_exponent", "highest_exponent", "unchanged_pct"),
)


def numerics_shown(directory: Path) -> dict[str, Any]:
    """The histograms and the table of a run in `directory`; none if its numerics were not watched.

    A histogram's axis is the exponent of two: `numerics_gradient_log2` counts gradients of all layers.
    """
    import numpy as np
    import wandb

    try:
        numerics = RunNumerics.read(directory)
    except (FileNotFoundError, RecordError):
        return {}
    shown: dict[str, Any] = {}
    for kind in TENSOR_KINDS:
        counts = _counts([one for one in numerics.magnitudes if one.kind == kind])
        if 0 < len(counts) <= _MAX_BINS:
            edges = np.array([*counts, max(counts) + 1])
            shown[f"numerics_{kind}_log2"] = wandb.Histogram(np_histogram=(np.array([*counts.values()]), edges))
    columns: list[str | int] = [*_COLUMNS]
    if numerics.magnitudes:
        shown["numerics_table"] = wandb.Table(columns, [_row(one) for one in numerics.magnitudes])
    return shown


def _counts(magnitudes: list[Magnitudes]) -> dict[int, int]:
    """Elements by exponent, of all exponents from the lowest to the highest."""
    some = [one for one in magnitudes if one.counts]
    first = min((one.first_exponent for one in some), default=0)
    end = max((one.first_exponent + len(one.counts) for one in some), default=0)
    counts = dict.fromkeys(range(first, end), 0)
    for one in some:
        for index, count in enumerate(one.counts):
            counts[one.first_exponent + index] += count
    return counts


def _row(one: Magnitudes) -> list[Any]:
    highest = one.first_exponent + len(one.counts) - 1
    lowest_to_highest = [one.first_exponent, highest] if one.counts else [None, None]
    numbers = [one.num_steps, one.num_elements, one.num_zeros, one.num_nonfinite, one.max_abs]
    return [one.kind, one.layer, one.dtype, *numbers, *lowest_to_highest, one.unchanged_pct]
