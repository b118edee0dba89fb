"""The checks before a sweep starts, as its parent sees them: made in a child, since they need torch and the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.config.errors import UserError
from ampsweep.config.schema import Config
from ampsweep.launch.child import NamedFunction
from ampsweep.launch.isolated import run_isolated
from ampsweep.tracking.wandb.process import WandbAddress


@dataclass(frozen=True)
class Checked:
    """The result of checking one run before it starts."""

    wrong_input: str | None = None
    """A sentence if the user's input is wrong; then nothing starts."""
    unsupported: str | None = None
    """A sentence if this device cannot do the mode: an outcome for a run of a sweep, an error for a single run."""
    num_steps: int | None = None
    num_parameters: int | None = None
    output_bytes: int = 0
    """The same as `CheckedModel.output_bytes`."""
    too_large: str | None = None
    """A sentence if the run is predicted not to fit the device's memory."""


_CHECK_RUNS: Final = NamedFunction[list[Checked]]("ampsweep.sweep.preflight_checks:check_runs")


def preflight(configs: Sequence[Config], wandb: WandbAddress | None = None) -> list[Checked]:
    """Check all configs in one child process; `wandb` is the address of the process that checks them with W&B, if any.

    Raises:
        UserError: the first input that is wrong.
        KeyboardInterrupt: this process was asked to stop.
    """
    checked = run_isolated(_CHECK_RUNS, (configs, wandb)).unpacked()
    for one in checked:
        if one.wrong_input is not None:
            raise UserError(one.wrong_input)
    return checked
