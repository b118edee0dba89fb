"""The checks before a sweep starts, as its parent sees them; those that need torch or the device are a child's."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ampsweep.config.errors import UserError
from ampsweep.config.schema import COMPONENTS, Config
from ampsweep.launch.child import NamedFunction
from ampsweep.launch.isolated import ChildError, run_isolated
from ampsweep.record import is_checkpoint, kept_checkpoints
from ampsweep.run.directories import checkpoint_path, existing_multirun
from ampsweep.tracking.tracker import TrackingCheck
from ampsweep.tracking.wandb.process import WandbAddress


@dataclass(frozen=True)
class Checked:
    """The result of checking one run before it starts."""

    wrong_input: str | None = None
    """A sentence if the user's input is wrong; then nothing starts."""
    unsupported: str | None = None
    """A sentence if this device cannot do the mode: an outcome in a sweep, an error for a single run."""
    num_steps: int | None = None
    num_parameters: int | None = None
    output_bytes: int | None = None
    """As in `CheckedModel`."""
    too_large: str | None = None
    """A sentence if the run is predicted not to fit the device's memory."""


_CHECK_RUNS: Final = NamedFunction[list[Checked]]("ampsweep.sweep.preflight_checks:check_runs")

_FILES: Final = ("path", "val_path")
"""Keys of our own data sets that name files."""
_GRACE_S: Final = 1.0
"""The time that checks may go on once they are to stop: they leave nothing half done."""


def preflight(configs: Sequence[Config], *, elsewhere: bool = False) -> list[Checked]:
    """Check all configs in one child process.

    Args:
        elsewhere: true if the runs are for machines with other devices than this one, which are left unchecked.

    Raises:
        UserError: the first input that is wrong.
        KeyboardInterrupt: this process was asked to stop.
    """
    doing: list[object] = []
    ended = run_isolated(_CHECK_RUNS, (configs, elsewhere), on_message=doing.append, grace_s=_GRACE_S)
    try:
        checked = ended.unpacked()
    except ChildError as error:  # the user's own code has ended the process
        raise UserError(f"{doing[-1]} cannot be checked: {error}" if doing else str(error)) from error
    for one in checked:
        if one.wrong_input is not None:
            raise UserError(one.wrong_input)
    return checked


@contextmanager
def checked_with_wandb(configs: Iterable[Config], wandb: WandbAddress | None) -> Iterator[None]:
    """Check what the configs say about W&B, in the process at `wandb`, beside other checks; without one nothing.

    Raises:
        UserError: at the end, the first settings that W&B refuses.
    """
    settings = {repr(config.tracking): config.tracking for config in configs}
    checks = [] if wandb is None else [TrackingCheck(one, wandb) for one in settings.values()]
    yield
    for check in checks:
        try:
            check.require()
        except ValueError as error:
            raise UserError(str(error)) from error


def check_existence(configs: Iterable[Config]) -> None:
    """Check that the packages, files and directories that these configs name are there, before anything takes time.

    Raises:
        UserError: the first that is not.
    """
    found = {"", *sys.modules}
    for config in configs:
        for group in COMPONENTS:
            target = str(getattr(config, group).get("_target_", ""))
            package = target.partition(".")[0]
            if package not in found and find_spec(package) is None:
                fault = f"ModuleNotFoundError: No module named '{package}'"
                raise UserError(f"{group}._target_={target} does not import: {fault}")
            found.add(package)
        if str(config.data["_target_"]).startswith("ampsweep."):
            for file in (config.data.get(key) for key in _FILES):
                if file is not None and not Path(file).exists():
                    raise UserError(
                        f"data={config.data['name']}: data file {file} cannot be read: No such file or directory"
                    )
        if config.into is not None:
            existing_multirun(config.into)
        path = checkpoint_path(config)
        if path is not None and not is_checkpoint(path) and not kept_checkpoints(path):
            raise UserError(f"resume={config.resume}: {path} is neither a checkpoint nor a run directory with one")
