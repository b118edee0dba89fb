"""`ampsweep sync`: send to W&B the missing parts of runs that have ended, and the comparison of a multirun."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ampsweep.config.errors import UserError
from ampsweep.record import Found, RecordError, RunRecord, find_records
from ampsweep.record.outcome import ALL_ENDED, SOME_FAILED
from ampsweep.report.wandb.send_comparison import complete_comparison
from ampsweep.run.directories import is_running, resolved_directory
from ampsweep.text import escaped, listed
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess
from ampsweep.tracking.wandb.run_settings import group_of
from ampsweep.tracking.wandb.server import ASK_S, log_in
from ampsweep.tracking.wandb.sync_run import Synced, complete_runs, patience_s

Runs = Sequence[tuple[Path, RunRecord]]


def sync_command(directories: Sequence[Path]) -> int:
    """Complete on W&B every run below `directories` and print a line for each; returns the exit code."""
    resolved = [resolved_directory(directory) for directory in directories]
    return ALL_ENDED if sync_directories(resolved, lambda line: print(escaped(line), flush=True)) else SOME_FAILED


def sync_directories(directories: Sequence[Path], say: Callable[[str], None]) -> bool:
    """Complete on W&B every run below `directories`; return True if all can be read, have ended and are complete there.

    A multirun among them gets its comparison. `say` is called with a line for each run and comparison. Runs that were
    sent stay on W&B, even if a later one fails.

    Raises:
        UserError: a directory has no runs that can be read; W&B cannot be reached, or refuses the key or every run.
    """
    found = [_found(directory) for directory in directories]
    unreadable = [error for one in found for error in one.unreadable]
    for error in unreadable:
        say(f"{error.path.parent.name}: nothing sent, {error}")
    runs = [run for one in found for run in one.records if run[1].kind == "measured"]
    try:
        with WandbProcess() as process:
            left, are_right = _send_runs(runs, say, process.address)
            of_directories = {path.parent for path, _ in runs if any(map(path.parent.is_relative_to, directories))}
            multiruns = {path for path in of_directories if _is_multirun(path)}
            for multirun in sorted(multiruns - {directory.parent for directory in left}):
                url, was_there = complete_comparison(multirun, process.address)
                say(f"comparison of {multirun.name}: {'complete' if was_there else 'sent'}, {url}")
    except WandbError as error:
        raise UserError(str(error)) from error
    return not unreadable and not left and are_right


def _send_runs(runs: Runs, say: Callable[[str], None], wandb: WandbAddress) -> tuple[list[Path], bool]:
    """Complete every run; return the directories of which nothing was sent, and whether the others are right on W&B.

    Raises:
        UserError: the server refuses all of them.
        WandbError: the server is lost.
    """
    left = [directory for directory, record in runs if is_running(record)]
    for directory in left:
        say(f"{directory.name}: still training, nothing sent")
    # A run of a multirun that has never been meant for W&B gets its group now.
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
        say(f"{directory.name}: {what}, {done.url}")
        if done.lacking:
            say(f"{directory.name}: W&B lacks {listed(done.lacking, limit=5)}: it does not show them")
            are_right = False

    while waiting:
        try:
            wandb.call(complete_runs, waiting, ASK_S, silence_s=patience_s(runs), on_message=hear)
        except (RecordError, OSError) as error:  # half a history would pass for a whole one there
            refused[waiting.pop(0)[0]] = str(error)
        except WandbError as error:
            wandb.call(log_in, silence_s=patience_s(()))  # or there is no point in going on
            for directory, _ in waiting[:1]:  # none, where its process is lost once all is sent
                refused[directory] = f"{directory}: W&B: {error}"
            del waiting[:1]
    if refused and len(refused) == len(runs):
        others = f" (nor can {len(runs) - 1} more of them be sent)" if len(runs) > 1 else ""
        raise UserError(f"{refused[runs[0][0]]}{others}")
    for directory, why in refused.items():
        say(f"{directory.name}: nothing sent, {why.removeprefix(f'{directory}: ')}")
    return [*left, *refused], are_right


def _found(directory: Path) -> Found:
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory")
    found = find_records(directory)
    if not any(record.kind == "measured" for _, record in found.records):
        raise UserError(str(found.unreadable[0]) if found.unreadable else f"{directory}: no runs (run.json) in it")
    return found


def _is_multirun(directory: Path) -> bool:
    return (directory / "multirun.yaml").is_file()
