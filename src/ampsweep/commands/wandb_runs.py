"""Runs on a W&B server as the input of a report."""

from pathlib import Path
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ampsweep.config.errors import UserError
from ampsweep.report.terminal import Terminal
from ampsweep.text import listed, plural
from ampsweep.tracking.wandb.api import WandbError
from ampsweep.tracking.wandb.copy import copy_runs
from ampsweep.tracking.wandb.selection import Selection

_ROOT: Final = Path("wandb_reports")


def copied_runs(address: str, directory: Path | None) -> Path:
    """Load the runs at `address` into a directory, except for those already there, and return the directory.

    `directory` is by default one below `wandb_reports` in the working directory. The progress, and the runs that cannot
    be compared, are printed on stderr.

    Raises:
        UserError: the address, the login, the server or the directory is at fault.
    """
    try:
        selection = Selection.parse(address)
    except ValueError as error:
        raise UserError(str(error)) from error
    console = Terminal(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    place = (directory or _ROOT.joinpath(*selection.folders)).resolve()
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(str(selection), total=None)
            copied = copy_runs(selection, place, lambda number, of: bar.update(task, completed=number, total=of))
    except WandbError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{error.filename or place}: cannot be written: {error.strerror}") from error
    counts = f"{plural(copied.num_loaded, 'run')} loaded, {copied.num_kept} unchanged"
    console.print(f"{selection}: {counts}, in {place}", soft_wrap=True)
    for reason in dict.fromkeys(reason for _, reason in copied.skipped):
        names = listed([name for name, why in copied.skipped if why == reason], limit=3)
        console.print(f"left out: {names}: {reason}", soft_wrap=True)
    return place
