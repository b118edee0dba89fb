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
    """To the W&B process: a run will come."""

    config: TrackingConfig


@dataclass(frozen=True)
class Check:
    """To the W&B process: a run may come; it is to say whether it could be tracked so."""

    config: TrackingConfig


@dataclass(frozen=True)
class Open:
    """To the W&B process: a run is to be tracked so."""

    config: TrackingConfig
    group: str | None


@dataclass(frozen=True)
class Opened:
    """Its answer to `Check` and `Open`: the mode, a line that tells the user, the run's place; or why it refuses."""

    mode: str = "disabled"
    line: str | None = None
    place: dict[str, Any] = field(default_factory=dict)
    refusal: str | None = None


@dataclass(frozen=True)
class Start:
    """To the W&B process: the run begins. From here on it reads the rows in the directory's history file."""

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
    """To the W&B process: a comparison belongs there; wandb's own files go below the directory."""

    page: "ComparisonPage"
    place: "WandbPlace"
    directory: Path


@dataclass(frozen=True)
class Published:
    """Its answer to `Publish`: the address, or why there is none."""

    url: str = ""
    failure: str | None = None


@dataclass(frozen=True)
class Done:
    """Its answer to `Finish`: the facts for the record."""

    wandb: WandbFacts
