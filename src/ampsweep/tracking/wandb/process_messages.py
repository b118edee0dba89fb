"""The messages between a training and the W&B process that tracks it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.record.parts import WandbFacts

if TYPE_CHECKING:
    from ampsweep.tracking.wandb.comparison_run import ComparisonPage
    from ampsweep.tracking.wandb.run_settings import WandbPlace

SYNC_LATER: Final = "history.jsonl has every row, `ampsweep sync DIRECTORY` sends what W&B lacks"
"""The advice to the user whenever W&B is lost."""


@dataclass(frozen=True)
class Prepare:
    """To the W&B process: prepare for a run that will come."""

    config: TrackingConfig


@dataclass(frozen=True)
class Check:
    """To the W&B process: check whether a run with these settings could be tracked."""

    config: TrackingConfig


@dataclass(frozen=True)
class Open:
    """To the W&B process: open a run with these settings."""

    config: TrackingConfig
    group: str | None


@dataclass(frozen=True)
class Opened:
    """The answer to `Check` and `Open`: the mode, a line for the user and the run's place, or why it refuses."""

    mode: str = "disabled"
    line: str | None = None
    place: dict[str, Any] = field(default_factory=dict)
    refusal: str | None = None


@dataclass(frozen=True)
class Start:
    """To the W&B process: the run begins; from now on read its rows in the directory's history file."""

    record: RunRecord
    directory: Path


@dataclass(frozen=True)
class Started:
    """From the W&B process, once W&B has the run: the facts for the record."""

    wandb: WandbFacts


@dataclass(frozen=True)
class Stopped:
    """From the W&B process: somebody has stopped the run on the server."""


@dataclass(frozen=True)
class Finish:
    """To the W&B process: the run has ended."""

    record: RunRecord


@dataclass(frozen=True)
class Publish:
    """To the W&B process: publish a comparison; wandb's own files go below the directory."""

    page: "ComparisonPage"
    place: "WandbPlace"
    directory: Path


@dataclass(frozen=True)
class Complete:
    """To the W&B process: send what W&B lacks of the run in the directory, which has ended."""

    config: TrackingConfig
    directory: Path


@dataclass(frozen=True)
class Published:
    """The answer to `Publish` and `Complete`: the address, and why it is not whole there; offline, neither."""

    url: str = ""
    failure: str | None = None


@dataclass(frozen=True)
class Done:
    """The answer to `Finish`: the facts for the record."""

    wandb: WandbFacts
