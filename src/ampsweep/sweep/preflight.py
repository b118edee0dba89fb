"""The checks before a sweep starts, as its parent sees them: made in a child, since they need torch and the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.float8_gain import Float8Gain
from ampsweep.config.errors import UserError
from ampsweep.config.schema import Config
from ampsweep.launch.child import NamedFunction
from ampsweep.launch.isolated import ChildError, run_isolated
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
    output_bytes: int | None = None
    """The same as `CheckedModel.output_bytes`."""
    float8_gain: Float8Gain | None = None
    """The time that float8 can gain in the layers of this model; None in other modes."""
    too_large: str | None = None
    """A sentence if the run is predicted not to fit the device's memory."""


_CHECK_RUNS: Final = NamedFunction[list[Checked]]("ampsweep.sweep.preflight_checks:check_runs")

_GRACE_S: Final = 1.0
"""The time that checks may go on once they are to stop: they leave nothing half done."""


def preflight(
    configs: Sequence[Config], wandb: WandbAddress | None = None, *, elsewhere: bool = False
) -> list[Checked]:
    """Check all configs in one child process.

    Args:
        wandb: the address of the process that checks them with W&B, if any.
        elsewhere: true if the runs are for machines with other devices than this one, which are left unchecked.

    Raises:
        UserError: the first input that is wrong.
        KeyboardInterrupt: this process was asked to stop.
    """
    doing: list[object] = []
    ended = run_isolated(_CHECK_RUNS, (configs, wandb, elsewhere), on_message=doing.append, grace_s=_GRACE_S)
    try:
        checked = ended.unpacked()
    except ChildError as error:  # the user's own code has ended the process
        raise UserError(f"{doing[-1]} cannot be checked: {error}" if doing else str(error)) from error
    for one in checked:
        if one.wrong_input is not None:
            raise UserError(one.wrong_input)
    return checked
