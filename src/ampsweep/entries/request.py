"""An order for one training, and the record it begins with."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampsweep.batch_search import BatchSearch
from ampsweep.config.identity import config_hash, identity, pair_key, resolved_values
from ampsweep.config.precision_modes import arm_label
from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.tracking.wandb_process import WandbAddress


@dataclass(frozen=True)
class RunRequest:
    """One training to be done in `directory`."""

    config: Config
    directory: Path
    group: str | None = None
    checkpoint: Path | None = None
    """File to continue from; of this very run when it lies in `directory`."""
    wandb: WandbAddress | None = None
    """Process that tracks the run in W&B; None: the process that trains."""
    batch_search: BatchSearch | None = None
    """The search that the batch size is the answer of."""
    prediction: dict[str, Any] | None = None
    """What is predicted for it, if that is known: a run that differs in its seed alone has made it."""


def new_record(
    config: Config,
    *,
    device: str,
    device_name: str | None = None,
    data_fingerprint: str = "",
    steps: int | None = None,
    model_size: int | None = None,
    batch_search: BatchSearch | None = None,
) -> RunRecord:
    """The record of a run that has not begun; what only a device or a built run knows is passed in."""
    return RunRecord(
        run_id=secrets.token_hex(4),
        arm=arm_label(config.precision),
        pair_key=pair_key(config, device_name=device_name or device, world_size=1, data_fingerprint=data_fingerprint),
        config_hash=config_hash(config),
        identity=identity(config, steps=steps, device=device, device_name=device_name, model_size=model_size),
        config=resolved_values(config),
        started_at=now(),
        batch_search=batch_search,
    )


def now() -> str:
    """The time as records give it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
