"""`ampsweep sync`: what W&B lacks of runs that have ended."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ampsweep.config.errors import UserError
from ampsweep.entries.directories import group_of, is_running
from ampsweep.record import Found, RunRecord, find_records


def sync_directories(directories: Sequence[Path], say: Callable[[str], None]) -> bool:
    """Complete on W&B every run below `directories`; whether all can be read, have ended and are complete there.

    `say` takes a line for each run. What has been sent stays sent, whatever becomes of the rest.

    Raises:
        UserError: a directory has no runs, or what it has is none; W&B cannot be reached, or refuses the key or a run.
    """
    # Only here: wandb takes half a second to import, which no other command should wait for.
    from ampsweep.tracking.wandb_sync import SyncError, complete, wandb_server

    found = [_found(directory) for directory in directories]
    unreadable = [error for one in found for error in one.unreadable]
    for error in unreadable:
        say(f"{error.path.parent.name}: nothing sent, {error}")
    are_all = not unreadable
    try:
        with wandb_server():
            for directory, record in (run for one in found for run in one.records if run[1].kind == "measured"):
                if is_running(record):
                    say(f"{directory.name}: still training, nothing sent")
                    are_all = False
                    continue
                done = complete(record, directory, group=_group(record, directory))
                what = "complete" if done.was_complete else f"sent {done.num_sent} rows and its end"
                say(f"{directory.name}: {what}, {done.url}")
    except SyncError as error:
        raise UserError(str(error)) from error
    return are_all


def _found(directory: Path) -> Found:
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory")
    found = find_records(directory)
    if not any(record.kind == "measured" for _, record in found.records):
        raise UserError(str(found.unreadable[0]) if found.unreadable else f"{directory}: no runs (run.json) in it")
    return found


def _group(record: RunRecord, directory: Path) -> str | None:
    is_of_multirun = (directory.parent / "multirun.yaml").is_file()
    return group_of(record.identity.experiment, directory.parent) if is_of_multirun else None
