"""The run record, `run.json`, of a training or a prediction."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ampsweep.records.batch_search import BatchSearch
from ampsweep.records.files import RecordError, read_file, sealed, write_atomically
from ampsweep.records.outcome import OutOfMemory, Status
from ampsweep.records.reading import read_object
from ampsweep.records.sections import (
    Attempt,
    BestEvaluation,
    Compilation,
    Contamination,
    FigureSources,
    KeptWeights,
    MemoryUse,
    ModeProof,
    RankFigures,
    RecordedDtypes,
    StepPrediction,
    WandbFacts,
    as_json,
)
from ampsweep.redaction import hidden

SCHEMA: Final = 1
FILE_NAME: Final = "run.json"

Kind = Literal["measured", "predicted"]

Source = Literal["suite", "loop", "script", "transformers", "lightning", "fabric", "accelerate", "wandb"]
"""Whose training it was: the suite's own, or one that the suite only recorded. What those could not tell is absent."""

if TYPE_CHECKING:
    Figures = dict[str, float]
else:  # values are not checked on reading: the code that uses a figure checks it
    Figures = dict[str, Any]


@dataclass(kw_only=True)
class Identity:
    """Flat facts about a run for tables, filters and W&B reports; absent facts are None."""

    experiment: str
    precision_mode: str
    dtype: str | None = None
    model: str | None = None
    task: str | None = None
    data: str | None = None
    batch_size: int | None = None
    grad_accum_steps: int | None = None
    steps: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    compile: bool = False
    channels_last: bool = False
    seed: int
    device: str
    world_size: int = 1
    parallel: str = "single"  # single, ddp or fsdp2
    global_batch_size: int | None = None  # samples of an optimizer step
    model_size: int | None = None  # number of parameters
    seq_len: int | None = None
    device_name: str | None = None
    data_fingerprint: str | None = None  # hash of the data's content (`ampsweep.data.base.Data`)


@dataclass(kw_only=True)
class RunRecord:
    """A run. Its status is `interrupted` from the start, so that it holds if the process is killed."""

    run_id: str
    arm: str  # `amp_bf16`, or `amp_bf16 after step 20 of fp32`
    pair_key: str
    config_hash: str
    identity: Identity
    config: dict[str, Any]  # the resolved config
    schema: int = SCHEMA
    source: Source = "suite"
    kind: Kind = "measured"
    status: Status = "interrupted"
    error: str | None = None
    oom: OutOfMemory | None = None  # if the status is `oom`; `error` holds its sentence
    cut_short: str | None = None  # why training ended early without failure (`trainer.max_seconds`, `trainer.patience`)
    stopped_early: bool = False  # `cut_short` by `trainer.patience`, the training's own end
    started_at: str | None = None
    ended_at: str | None = None  # ISO 8601, UTC
    environment: dict[str, Any] = field(default_factory=dict)
    proof: ModeProof = field(default_factory=ModeProof)
    compilation: Compilation = field(default_factory=Compilation)
    contamination: Contamination = field(default_factory=Contamination)
    summary: Figures = field(default_factory=dict)  # by metric key; without metrics that the device cannot measure
    absent: dict[str, str] = field(default_factory=dict)  # why the summary lacks a metric that the device can measure
    best: BestEvaluation | None = None  # with `trainer.patience` the summary's `val/...` are its values
    weights: list[KeptWeights] = field(default_factory=list)
    memory: MemoryUse = field(default_factory=MemoryUse)  # the fullest rank's
    dtypes: RecordedDtypes = field(default_factory=RecordedDtypes)
    ranks: list[RankFigures] = field(default_factory=list)  # empty with a single rank
    prediction: StepPrediction | None = None
    batch_search: BatchSearch | None = None  # the search that found the batch size
    attempts: list[Attempt] = field(default_factory=list)
    history_digest: str | None = field(default=None, compare=False)
    """Set once the run has ended; None while it runs, after a kill, and in a copy."""
    wandb: WandbFacts = field(default_factory=WandbFacts)
    taken_from: FigureSources = field(default_factory=FigureSources)  # if the source is `wandb`

    @property
    def origin(self) -> Attempt | None:
        """The attempt that resumed another run's checkpoint, if any."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.saved_in is not None), None)

    def write(self, directory: Path, name: str = FILE_NAME) -> None:
        """Write the record into `directory` atomically, without secrets, with its digest."""
        text = json.dumps(hidden(self.as_json()), indent=1, allow_nan=False, default=str)
        write_atomically(directory / name, sealed(text + "\n"))

    def as_json(self) -> dict[str, Any]:
        return {field.name: as_json(getattr(self, field.name)) for field in fields(self)}

    @staticmethod
    def read(directory: Path) -> "RunRecord":
        return read_object(directory / FILE_NAME, "a run record", SCHEMA, RunRecord)


def now() -> str:
    """The current time as in records: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def record_beside(checkpoint: Path) -> RunRecord | None:
    """Read the record of the run that a checkpoint or run directory belongs to."""
    place = checkpoint.resolve()
    for directory in (place, place.parent.parent):
        with suppress(FileNotFoundError, RecordError):
            return RunRecord.read(directory)
    return None


@dataclass(frozen=True)
class Found:
    records: list[tuple[Path, RunRecord]]
    unreadable: list[RecordError]


def find_records(directory: Path, *, mentioning: str | None = None) -> Found:
    """Find the records at or below `directory` by path; `mentioning`: only those with this text, a fast search."""
    unreadable: list[RecordError] = []
    records = []

    def note(error: OSError) -> None:
        unreadable.append(RecordError(Path(error.filename), f"cannot be read: {error.strerror}"))

    for place in run_directories(directory, note):
        try:
            if mentioning is None or mentioning.encode() in read_file(place / FILE_NAME):
                records.append((place, RunRecord.read(place)))
        except RecordError as error:
            unreadable.append(error)
        except FileNotFoundError:
            continue  # removed in between
    return Found(records, unreadable)


def run_directories(directory: Path, on_error: Callable[[OSError], None] | None = None) -> list[Path]:
    """Find directories with an entry `run.json` by path; `on_error` gets those that cannot be listed."""
    walked = os.walk(directory, onerror=on_error)
    return sorted(Path(place) for place, folders, files in walked if FILE_NAME in files or FILE_NAME in folders)
