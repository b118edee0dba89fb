"""Check all runs before a sweep starts. Checks that need torch or the device run in a child process."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ampsweep.config.errors import UserError
from ampsweep.config.schema import COMPONENTS, Config
from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.launch.isolated_process import ChildError, run_isolated
from ampsweep.records import is_checkpoint, kept_checkpoints
from ampsweep.run.directories import checkpoint_path, existing_multirun
from ampsweep.tracking.tracker import TrackingCheck
from ampsweep.tracking.wandb.process import WandbAddress


@dataclass(frozen=True)
class Checked:
    """The result of checking a run; the texts are sentences."""

    wrong_input: str | None = None  # then nothing starts
    unsupported: str | None = None
    """The device does not support the mode: an outcome in a sweep, an error for a single run."""
    num_steps: int | None = None
    num_parameters: int | None = None
    output_bytes: int | None = None  # as in `CheckedModel`
    too_large: str | None = None  # the run is predicted not to fit the device's memory
    emulated: str | None = None  # of a run that may be left out: its device multiplies no numbers of its dtype


_CHECK_RUNS: Final = NamedFunction[list[Checked]]("ampsweep.sweep.preflight_checks:check_runs")

_FILES: Final = ("path", "val_path")  # keys of the suite's data sets that name files
_GRACE_S: Final = 1.0


def preflight(configs: Sequence[Config], *, elsewhere: bool = False) -> list[Checked]:
    """Check all configs in a child process; leave devices unchecked if the runs are for other machines (`elsewhere`).
    UserError: wrong input, the first. KeyboardInterrupt: this process was asked to stop."""
    doing: list[object] = []
    ended = run_isolated(_CHECK_RUNS, (configs, elsewhere), on_message=doing.append, grace_s=_GRACE_S)
    try:
        checked = ended.unpacked()
    except ChildError as error:  # the user's own code ended the process
        raise UserError(f"{doing[-1]} cannot be checked: {error}" if doing else str(error)) from error
    for check in checked:
        if check.wrong_input is not None:
            raise UserError(check.wrong_input)
    return checked


@contextmanager
def checked_with_wandb(configs: Iterable[Config], wandb: WandbAddress | None) -> Iterator[None]:
    """Check the W&B settings in the process at `wandb` while other checks run; raise UserError at the end."""
    settings = {repr(config.tracking): config.tracking for config in configs}
    checks = [] if wandb is None else [TrackingCheck(tracking, wandb) for tracking in settings.values()]
    yield
    for check in checks:
        try:
            check.require()
        except ValueError as error:
            raise UserError(str(error)) from error


def check_existence(configs: Iterable[Config]) -> None:
    """Raise UserError for the first named package, file or directory that is missing, before anything takes time."""
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
