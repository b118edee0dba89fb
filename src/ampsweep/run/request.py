"""The request for a training, and its initial record."""

import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ampsweep.config.identity import config_hash, pair_key
from ampsweep.config.modes import arm_after, arm_of, dtypes_of
from ampsweep.config.schema import Config, component_name
from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.records import FILE_NAME, Identity, RecordError, RunRecord, now
from ampsweep.records.batch_search import BatchSearch
from ampsweep.records.outcome import OUTCOMES, Status
from ampsweep.records.sections import RecordedDtypes, StepPrediction
from ampsweep.run.directories import checkpoint_path
from ampsweep.tracking.wandb.process import WandbAddress


@dataclass(frozen=True)
class RunRequest:
    """A training to run in `directory`."""

    config: Config
    directory: Path
    group: str | None = None
    checkpoint: Path | None = None  # file or run directory to resume from; inside `directory` it is this run's own
    wandb: WandbAddress | None = None  # the W&B process to track the run; None: a process of its own
    batch_search: BatchSearch | None = None  # the search that found the batch size
    prediction: StepPrediction | None = None  # of a run that differs only in its seed, if it has made one
    predictor: NamedFunction[StepPrediction] | None = None  # of config, device and step; None: no prediction
    asked_at_s: float = field(default_factory=time.time)  # a time before the run had an outcome
    in_sweep: bool = False  # True for a point of a multirun or of a W&B agent
    is_recorded: bool = True  # False on ranks other than 0: they write no files of the run

    def write(self, record: RunRecord) -> None:
        if self.is_recorded:
            record.write(self.directory)


def trained_meanwhile(request: RunRequest) -> Status | None:
    """The outcome that another sweep of this directory has given the run since the request, if any."""
    with suppress(FileNotFoundError, RecordError):
        record = RunRecord.read(request.directory)
        is_new = (request.directory / FILE_NAME).stat().st_mtime > request.asked_at_s
        if is_new and record.status in OUTCOMES and record.config_hash == config_hash(request.config):
            return record.status
    return None


def planned_arm(config: Config) -> str:
    """The arm of a run before it begins, which depends on its checkpoint if that is readable."""
    arm, path = arm_of(config), checkpoint_path(config)
    if path is None:
        return arm
    from ampsweep.training.checkpoint import CheckpointError, arm_and_step  # imports torch

    with suppress(CheckpointError):
        return arm_after(arm, *arm_and_step(path))
    return arm


def new_record(
    config: Config,
    *,
    device: str,
    device_name: str | None = None,
    data_fingerprint: str | None = None,
    batch_search: BatchSearch | None = None,
    world_size: int = 1,
) -> RunRecord:
    """Make the record of a run that has not begun."""
    batch_size, num_accumulated = config.data["batch_size"], config.trainer.grad_accum_steps
    dtypes = asdict(dtypes_of(config))
    if config.parallel.strategy == "single":
        del dtypes["reduction"]
    identity = Identity(
        experiment=config.name,
        precision_mode=config.precision.mode,
        dtype=dtypes_of(config).compute,
        model=component_name(config.model),
        task=component_name(config.task),
        data=component_name(config.data),
        data_fingerprint=data_fingerprint,
        batch_size=batch_size,
        grad_accum_steps=num_accumulated,
        seq_len=config.data.get("seq_len"),
        optimizer=_optimizer_names(config.optimizer),
        lr=config.optimizer.get("lr"),
        compile=config.trainer.compile,
        channels_last=config.trainer.channels_last,
        seed=config.seed,
        device=device,
        device_name=device_name,
        world_size=world_size,
        parallel=config.parallel.strategy,
        global_batch_size=batch_size * num_accumulated * world_size,
    )
    return RunRecord(
        run_id=secrets.token_hex(4),
        arm=planned_arm(config),
        pair_key=pair_key(
            config, device_name=device_name or device, world_size=world_size, data_fingerprint=data_fingerprint or ""
        ),
        config_hash=config_hash(config),
        identity=identity,
        dtypes=RecordedDtypes(**dtypes),
        config=asdict(config),
        started_at=now(),
        batch_search=batch_search,
    )


def _optimizer_names(optimizer: dict[str, Any]) -> str:
    """The optimizers' names, such as `adamw, critic: SGD`."""
    others = {name: own for name, own in (optimizer.get("each") or {}).items() if "_target_" in own}
    return ", ".join([component_name(optimizer), *(f"{name}: {component_name(own)}" for name, own in others.items())])
