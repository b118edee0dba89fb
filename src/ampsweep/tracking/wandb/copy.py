"""Runs of a W&B server, downloaded into run directories for a report."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ampsweep.metrics import MEDIA, STEP
from ampsweep.records import FILE_NAME, HISTORY_NAME, RecordError, RunRecord, history_line
from ampsweep.text import folder_name, listed
from ampsweep.tracking.wandb.content import RECORD_NAME
from ampsweep.tracking.wandb.foreign_run import ForeignKeys, leaves, varied_keys, wandb_facts, write_foreign
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.selection import Selection
from ampsweep.tracking.wandb.server import log_in, with_server

if TYPE_CHECKING:
    import wandb
    from wandb.apis.public import File, Run

    from ampsweep.tracking.wandb.service import Caller

_SOURCE_NAME: Final = "wandb_source.json"
_LOADING: Final = ".loading"
_LISTING_S: Final = 120.0  # limit of an answer about many runs, and of a run's download, retries included
_NO_RECORD: Final = f"has no {RECORD_NAME}, as runs of this suite have"
_NOT_OURS: Final = (
    "none of its runs is of this suite; --arm-key KEY compares others by the config key that tells their arms apart; "
    "keys with several values are"
)


@dataclass(frozen=True)
class Copied:
    num_loaded: int
    num_kept: int
    skipped: tuple[tuple[str, str], ...]  # runs that cannot be compared: name and reason


class _Source(NamedTuple):
    """The W&B run of a downloaded record and its state then, in a file beside the record."""

    id: str
    state: str

    @classmethod
    def of(cls, run: "Run", foreign: ForeignKeys | None) -> "_Source":
        read_by = "" if foreign is None else f" {foreign}"
        return cls(run.id, f"{run.state} {run.heartbeat_at} {run.history_line_count}{read_by}")

    @classmethod
    def read(cls, directory: Path) -> "_Source":
        path = directory / _SOURCE_NAME
        try:
            return cls(*json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise WandbError(f"{path} is damaged; delete {directory}, it will be loaded again") from error


def copy_runs(
    selection: Selection, directory: Path, progress: Callable[[int, int], None], foreign: ForeignKeys | None = None
) -> Copied:
    """Mirror the selected runs into `directory`, each with its `run.json` and `history.jsonl`. Only runs that have
    changed since the previous copy, complete or not, are downloaded. `progress` gets the number of runs that are there,
    and of all; `foreign` is how to read runs that are not the suite's, None to leave them out. Raises OSError, and
    WandbError for no login, project, sweep or comparable run, a silent server, or a `directory` with its own runs."""
    try:
        copied: Copied = with_server(
            _copy, selection, directory, foreign, silence_s=_LISTING_S, on_message=lambda numbers: progress(*numbers)
        )
    except WandbError as error:
        names_place = str(error).startswith((str(selection), str(directory)))
        raise WandbError(str(error) if names_place else f"{selection}: {error}") from error
    finally:
        shutil.rmtree(directory / _LOADING, ignore_errors=True)
    return copied


def _copy(caller: "Caller", selection: Selection, directory: Path, foreign: ForeignKeys | None) -> Copied:
    import wandb

    there = _copies(directory)
    log_in(caller)
    skipped: list[tuple[str, str]] = []
    with TemporaryDirectory() as scratch:  # wandb makes an empty folder for each run that it lists
        os.environ["WANDB_DIR"] = scratch
        api = wandb.Api(timeout=int(_LISTING_S))
        runs = _selected(selection, api, with_configs=foreign is not None)
        if foreign is not None:
            foreign.check(runs)
        changed = [
            run for run in runs if run.id not in there or _Source.read(there[run.id]) != _Source.of(run, foreign)
        ]
        num_kept = len(runs) - len(changed)
        shutil.rmtree(directory / _LOADING, ignore_errors=True)
        (directory / _LOADING).mkdir(parents=True)
        caller.send((num_kept, len(runs)))
        pool = ThreadPoolExecutor(8, thread_name_prefix="wandb")
        try:
            folders = [directory / _LOADING / str(number) for number in range(len(changed))]
            reasons = pool.map(_load, changed, folders, repeat(foreign))
            for number, (run, folder, reason) in enumerate(zip(changed, folders, reasons, strict=True), start=1):
                before = there.get(run.id)
                if reason is None:
                    if before is not None:
                        shutil.rmtree(before)
                    folder.rename(before or directory / folder_name(f"{run.name}-{run.id}"))
                else:
                    skipped.append((str(run.name), reason))
                    if before is not None:
                        _remove_copy(before)
                caller.send((num_kept + number, len(runs)))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # some of wandb's waits are unlimited; this process is not
        if skipped == [(str(run.name), _NO_RECORD) for run in runs]:
            configs = [leaves(run.config) for run in _selected(selection, api, with_configs=True)]
            raise WandbError(f"{selection}: {_NOT_OURS} {listed(varied_keys(configs)) or 'none'}")
    for run_id in there.keys() - {run.id for run in runs}:
        _remove_copy(there[run_id])
    if len(skipped) == len(runs):
        name, reason = skipped[0]
        raise WandbError(f"{selection}: none of its runs can be compared ({len(runs)}; {name} {reason})")
    return Copied(len(changed) - len(skipped), num_kept, tuple(skipped))


def _remove_copy(place: Path) -> None:
    for name in (FILE_NAME, HISTORY_NAME, _SOURCE_NAME):
        (place / name).unlink(missing_ok=True)
    if not any(place.iterdir()):  # else somebody added files
        place.rmdir()


def _copies(directory: Path) -> dict[str, Path]:
    records = [path.parent for path in directory.glob(f"*/{FILE_NAME}")]
    own = [place for place in records if not (place / _SOURCE_NAME).is_file()]
    if own or (directory / FILE_NAME).exists():
        raise WandbError(f"{directory}: holds runs of its own; those of W&B need another place (--output)")
    return {_Source.read(place).id: place for place in records}


def _selected(selection: Selection, api: "wandb.Api", *, with_configs: bool) -> "list[Run]":
    from wandb.errors import CommError

    try:
        if selection.sweep is not None:
            api.sweep(f"{selection.path}/{selection.sweep}")  # type: ignore[no-untyped-call]
        runs = list(api.runs(selection.path, selection.filters, per_page=100, lazy=not with_configs))
    except ValueError as error:
        raise WandbError(f"{selection}: no such project, or not for this API key") from error
    except CommError as error:
        if not isinstance(error.exc, ValueError):
            raise
        raise WandbError(f"{selection}: no such sweep; it may have been deleted") from error
    if not runs:
        raise WandbError(f"{selection}: there are no runs in it")
    return runs


def _load(run: "Run", directory: Path, foreign: ForeignKeys | None) -> str | None:
    """Download a run into a new directory; return the reason if it cannot be compared."""
    directory.mkdir()
    files = list(run.files([RECORD_NAME]))
    if files:
        reason = _load_own(run, directory, files)
    else:
        reason = _NO_RECORD if foreign is None else write_foreign(run, foreign, directory)
    if reason is None:
        (directory / _SOURCE_NAME).write_text(json.dumps(_Source.of(run, foreign)), encoding="utf-8")
    return reason


def _load_own(run: "Run", directory: Path, files: "list[File]") -> str | None:
    if [file.name for file in files] != [RECORD_NAME]:  # the server names the file to write
        return f"has other files in place of {RECORD_NAME}"
    files[0].download(root=str(directory), replace=True).close()
    (directory / RECORD_NAME).rename(directory / FILE_NAME)
    try:
        record = RunRecord.read(directory)
    except RecordError as error:
        return str(error).removeprefix(f"{directory / FILE_NAME} ")
    record.wandb = replace(wandb_facts(run), last_step=record.wandb.last_step or 0)
    lines: dict[int, str] = {}
    for row in run.scan_history(use_cache=False):
        if (step := row.get(STEP)) is not None:
            line = history_line(_as_logged(row))
            if lines.setdefault(int(step), line) != line:
                return f"has two rows of step {step} that differ"
    (directory / HISTORY_NAME).write_text("".join(lines.values()), encoding="utf-8")
    record.history_digest = None
    record.write(directory)
    return None


def _as_logged(row: Mapping[str, Any]) -> dict[str, Any]:
    """Undo what W&B does to a row: its own keys, the order of keys, and in Parquet float steps and nulls."""
    logged = {key: row[key] for key in sorted(row) if not key.startswith(("_", MEDIA)) and row[key] is not None}
    return {STEP: int(logged.pop(STEP)), **logged}
