"""What is known of a point before it runs."""

from dataclasses import dataclass
from typing import Final

from ampsweep.launch.isolated import Target


@dataclass(frozen=True)
class Checked:
    """The finding about one point."""

    problem: str | None = None
    """One sentence: the user's input is wrong."""
    unsupported: str | None = None
    """One sentence: this device cannot do it. An outcome in a sweep, a problem in a single run."""
    num_steps: int | None = None
    num_parameters: int | None = None
    output_bytes: int = 0
    """As `Fit.output_bytes`."""
    too_large: str | None = None
    """One sentence: it is predicted not to fit the device's memory."""


CHECK_POINTS: Final = Target[list[Checked]]("ampsweep.sweep.checks:check_points")
