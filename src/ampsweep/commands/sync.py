"""`ampsweep sync`: send to W&B the missing parts of runs that have ended, and the comparison of a multirun."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ampsweep.config.errors import UserError
from ampsweep.records import MULTIRUN_NAME, Found, RecordError, RunRecord, find_records
from ampsweep.records.outcome import ALL_ENDED, SOME_FAILED
from ampsweep.report.wandb.send_comparison import complete_comparison
from ampsweep.run.directories import is_running, resolved_directory
from ampsweep.text import escaped, listed
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess
from ampsweep.tracking.wandb.run_settings import group_of
from ampsweep.tracking.wandb.server import ASK_S, log_in
from ampsweep.tracking.wandb.sync_run import Synced, complete_runs, silence_limit_s

Runs = Sequence[tuple[Path, RunRecord]]


def sync_command(arguments: Namespace) -> int:
    """Complete every run below `directories` on W&B and print a line for each; return the exit code.

    A multirun gets its comparison too. Runs that were sent stay on W&B even if a later one fails. The exit code is 0 if
    every run can be read, has ended and is complete on W&B. UserError: a directory has no readable runs; W&B cannot be
    reached, or refuses the key or every run.
    """
    directories = [resolved_directory(directory) for directory in arguments.directories]
    found = [_found(directory) for directory in directories]
    unreadable = [error for records in found for error in records.unreadable]
    for error in unreadable:
        _say(f"{error.path.parent.name}: nothing sent, {error}")
    runs = [run for records in found for run in records.records if _can_be_sent(run[1])]
    try:
        with WandbProcess() as process:
            left, are_right = _send_runs(runs, process.address)
            of_directories = {path.parent for path, _ in runs if any(map(path.parent.is_relative_to, directories))}
            multiruns = {path for path in of_directories if _is_multirun(path)}
            for multirun in sorted(multiruns - {directory.parent for directory in left}):
                url, was_there = complete_comparison(multirun, process.address)
                _say(f"comparison of {multirun.name}: {'complete' if was_there else 'sent'}, {url}")
    except WandbError as error:
        raise UserError(str(error)) from error
    return SOME_FAILED if unreadable or left or not are_right else ALL_ENDED


def _say(line: str) -> None:
    print(escaped(line), flush=True)


def _send_runs(runs: Runs, wandb: WandbAddress) -> tuple[list[Path], bool]:
    """Complete every run; return the directories of which nothing was sent, and True if W&B has the others in full.
    UserError: the server refuses all of them. WandbError: the server is lost."""
    left = [directory for directory, record in runs if is_running(record)]
    for directory in left:
        _say(f"{directory.name}: still training, nothing sent")
    # A run of a multirun that was trained with tracking=disabled gets its group now.
    waiting = [
        (path, group_of(record.identity.experiment, path.parent) if _is_multirun(path.parent) else None)
        for path, record in runs
        if path not in left
    ]
    refused: dict[Path, str] = {}
    are_right = True

    def hear(done: Synced | None) -> None:
        nonlocal are_right
        if done is None:
            return
        directory, _ = waiting.pop(0)
        what = "complete" if done.was_complete else f"sent {done.num_sent} rows and its end"
        _say(f"{directory.name}: {what}, {done.url}")
        if done.lacking:
            _say(f"{directory.name}: W&B lacks {listed(done.lacking, limit=5)}: it does not show them")
            are_right = False

    while waiting:
        try:
            wandb.call(complete_runs, waiting, ASK_S, silence_s=silence_limit_s(runs), on_message=hear)
        except (RecordError, OSError) as error:  # W&B would take half a history for a whole one
            refused[waiting.pop(0)[0]] = str(error)
        except WandbError as error:
            wandb.call(log_in, silence_s=silence_limit_s(()))  # raises if the server is lost
            for directory, _ in waiting[:1]:  # none if the process was lost after everything was sent
                refused[directory] = f"{directory}: W&B: {error}"
            del waiting[:1]
    if refused and len(refused) == len(runs):
        others = f" (nor can {len(runs) - 1} more of them be sent)" if len(runs) > 1 else ""
        raise UserError(f"{refused[runs[0][0]]}{others}")
    for directory, why in refused.items():
        _say(f"{directory.name}: nothing sent, {why.removeprefix(f'{directory}: ')}")
    return [*left, *refused], are_right


def _found(directory: Path) -> Found:
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory")
    found = find_records(directory)
    if not any(_can_be_sent(record) for _, record in found.records):
        if any(record.source == "wandb" for _, record in found.records):
            raise UserError(f"{directory}: its runs are copies of runs on W&B, which are their authors' own")
        raise UserError(str(found.unreadable[0]) if found.unreadable else f"{directory}: no runs (run.json) in it")
    return found


def _can_be_sent(record: RunRecord) -> bool:
    """Return False for a prediction, and for the copy of a run on W&B that the suite did not track."""
    return record.kind == "measured" and record.source != "wandb"


def _is_multirun(directory: Path) -> bool:
    return (directory / MULTIRUN_NAME).is_file()
