"""The run record: what one training (or one prediction) leaves behind, read and written here only."""

import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, get_args

from ampsweep.batch_search import BatchSearch, Probe
from ampsweep.out_of_memory import OutOfMemory

SCHEMA: Final = 1
FILE_NAME: Final = "run.json"
HISTORY_NAME: Final = "history.jsonl"
CHECKPOINTS: Final = "checkpoints"
LAST: Final = "last.pt"
PREVIOUS: Final = "previous.pt"
SNAPSHOT_NAME: Final = "memory_snapshot.pickle"
"""A run directory's files; checkpoints are the newest and the one before. There is a snapshot only on request."""

Kind = Literal["measured", "predicted"]
Status = Literal["completed", "oom", "diverged", "unsupported", "interrupted", "failed"]
OUTCOMES: Final = frozenset({"completed", "oom", "diverged", "unsupported"})
"""Statuses that are an answer; `interrupted` and `failed` are the lack of one."""


class RecordError(ValueError):
    """A file that is not a run record of this schema."""


@dataclass(kw_only=True)
class Identity:
    """Flat facts about a run: what tables, filters and W&B reports read. Absent facts are None."""

    experiment: str
    precision_mode: str
    dtype: str
    model: str
    task: str
    data: str
    batch_size: int
    grad_accum_steps: int
    steps: int | None
    optimizer: str
    lr: float
    compile: bool
    channels_last: bool
    seed: int
    device: str
    world_size: int = 1
    model_size: int | None = None
    """Number of parameters."""
    seq_len: int | None = None
    device_name: str | None = None


@dataclass(kw_only=True)
class RunRecord:
    """One run. Units are in the metric keys; `memory` holds bytes by category.

    A new record says `interrupted`: a process that is killed leaves that, which is then true.
    """

    run_id: str
    arm: str
    pair_key: str
    config_hash: str
    identity: Identity
    config: dict[str, Any]
    schema: int = SCHEMA
    kind: Kind = "measured"
    status: Status = "interrupted"
    error: str | None = None
    oom: OutOfMemory | None = None
    """Of a run that ended `oom`; its sentence is the error."""
    cut_short: str | None = None
    """Why training ended before its last step although nothing failed (`trainer.max_seconds`)."""
    started_at: str | None = None
    ended_at: str | None = None
    """ISO 8601, UTC."""
    environment: dict[str, Any] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    contamination: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, float] = field(default_factory=dict)
    """Metric key -> value. What the device cannot measure has no key."""
    memory: dict[str, Any] = field(default_factory=dict)
    prediction: dict[str, Any] | None = None
    batch_search: BatchSearch | None = None
    """Of a run whose batch size is the answer of a search: how it was found. Its identity has that batch size."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """One entry a process that worked on this run: `started_at`, `from_step`."""
    wandb: dict[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write `run.json` into `directory` atomically: readers see the old record or the new one."""
        text = json.dumps(asdict(self), indent=1, allow_nan=False, default=str)
        write_atomically(directory / FILE_NAME, text + "\n")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the record of the run in `directory`.

        Raises:
            RecordError: the file is no record, or one of another schema.
            FileNotFoundError: there is none.
        """
        path = directory / FILE_NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RecordError(f"{path} is not a run record: {error}") from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            found = content.get("schema") if isinstance(content, dict) else type(content).__name__
            raise RecordError(f"{path} has record schema {found!r}; this version reads schema {SCHEMA}")
        try:
            content["identity"] = _part(Identity, content["identity"])
            content |= {"oom": _oom(content.get("oom")), "batch_search": _search(content.get("batch_search"))}
            record = _part(cls, content)
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path} is not a complete run record: {error}") from error
        if record.status not in get_args(Status) or record.kind not in get_args(Kind):
            raise RecordError(f"{path} has unknown status {record.status!r} or kind {record.kind!r}")
        return record


_Part = TypeVar("_Part")


def _part(kind: type[_Part], content: dict[str, Any]) -> _Part:
    """A dataclass from its fields; what a later version added is passed over."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in content.items() if key in known})


def _oom(content: dict[str, Any] | None) -> OutOfMemory | None:
    return None if content is None else _part(OutOfMemory, content)


def _search(content: dict[str, Any] | None) -> BatchSearch | None:
    if content is None:
        return None
    probes = [_part(Probe, probe | {"oom": _oom(probe.get("oom"))}) for probe in content["probes"]]
    return _part(BatchSearch, content | {"probes": probes})


def find_records(directory: Path) -> list[tuple[Path, RunRecord]]:
    """All records at or below `directory`, oldest path name first, as (run directory, record).

    Raises:
        RecordError: one of the files is not a record.
    """
    found = sorted(directory.rglob(FILE_NAME))
    return [(path.parent, RunRecord.read(path.parent)) for path in found]


def history_line(row: dict[str, Any]) -> str:
    """One history row as a line of strict JSON: non-finite numbers become the strings W&B uses for them."""
    try:
        return _STRICT_JSON.encode(row) + "\n"
    except ValueError:
        return _STRICT_JSON.encode({key: _encode(value) for key, value in row.items()}) + "\n"


def history_row(line: str) -> dict[str, Any]:
    """The row that `history_line` made the line of."""
    return {key: _NON_FINITE.get(value, value) for key, value in json.loads(line).items()}


def read_history(directory: Path) -> list[dict[str, Any]]:
    """The rows of a run's `history.jsonl`; a last line torn by a killed process is left out."""
    path = directory / HISTORY_NAME
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        rows.append(history_row(line))
    return rows


_STRICT_JSON: Final = json.JSONEncoder(allow_nan=False)
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _encode(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step, durable against a crash of the machine."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
