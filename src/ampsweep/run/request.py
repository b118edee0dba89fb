"""The request for one training, and the record that it begins with."""

import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ampsweep.config.identity import config_hash, pair_key, resolved_values
from ampsweep.config.modes import arm_after, arm_of, dtypes_of
from ampsweep.config.schema import Config, component_name
from ampsweep.launch.child import NamedFunction
from ampsweep.record import FILE_NAME, Identity, RecordError, RunRecord, now
from ampsweep.record.batch_search import BatchSearch
from ampsweep.record.outcome import OUTCOMES, Status
from ampsweep.record.parts import RecordedDtypes, StepPrediction
from ampsweep.run.directories import checkpoint_path
from ampsweep.tracking.wandb.process import WandbAddress


@dataclass(frozen=True)
class RunRequest:
    """A training to run in `directory`."""

    config: Config
    directory: Path
    group: str | None = None
    checkpoint: Path | None = None
    """File, or directory of a run, to resume from; if it is or lies in `directory`, it is this very run's."""
    wandb: WandbAddress | None = None
    """Process that tracks the run in W&B; None: the process that trains."""
    batch_search: BatchSearch | None = None
    """The search that found the batch size, if one did."""
    prediction: StepPrediction | None = None
    """The prediction for the run, if a run that differs only in its seed has made one already."""
    predictor: NamedFunction[StepPrediction] | None = None
    """Function of config and device that makes the prediction if there is none yet; None: nothing is predicted."""
    asked_at_s: float = field(default_factory=time.time)
    """The time at which the run had no outcome yet."""
    is_recorded: bool = True
    """False on the ranks that leave the run's files to the first one."""

    def write(self, record: RunRecord) -> None:
        """Write the run's record, where it is this process that does."""
        if self.is_recorded:
            record.write(self.directory)


def trained_meanwhile(request: RunRequest) -> Status | None:
    """The outcome that another sweep of this directory has given the run since it was asked for; None without."""
    with suppress(FileNotFoundError, RecordError):
        record = RunRecord.read(request.directory)
        is_new = (request.directory / FILE_NAME).stat().st_mtime > request.asked_at_s
        if is_new and record.status in OUTCOMES and record.config_hash == config_hash(request.config):
            return record.status
    return None


def planned_arm(config: Config) -> str:
    """The arm of a run before it begins, by the checkpoint that it goes on from, as far as that can be read."""
    arm, path = arm_of(config), checkpoint_path(config)
    if path is None:
        return arm
    from ampsweep.training.checkpoint import CheckpointError, arm_and_step  # torch is for those who need it

    with suppress(CheckpointError):
        return arm_after(arm, *arm_and_step(path))
    return arm


def new_record(
    config: Config,
    *,
    device: str,
    device_name: str | None = None,
    data_fingerprint: str | None = None,
    steps: int | None = None,
    model_size: int | None = None,
    lr: float | None = None,
    batch_search: BatchSearch | None = None,
    world_size: int = 1,
) -> RunRecord:
    """Make the record of a run that has not begun; facts that only a device or a built run knows are passed in."""
    batch_size, num_accumulated = config.data["batch_size"], config.trainer.grad_accum_steps
    identity = Identity(
        experiment=config.name,
        precision_mode=config.precision.mode,
        dtype=dtypes_of(config).compute,
        model=component_name(config.model),
        model_size=model_size,
        task=component_name(config.task),
        data=component_name(config.data),
        data_fingerprint=data_fingerprint,
        batch_size=batch_size,
        grad_accum_steps=num_accumulated,
        seq_len=config.data.get("seq_len"),
        steps=steps,
        optimizer=_optimizer_names(config.optimizer),
        lr=lr if lr is not None else config.optimizer.get("lr"),
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
            config,
            device_name=device_name or device,
            world_size=world_size,
            data_fingerprint=data_fingerprint or "",
        ),
        config_hash=config_hash(config),
        identity=identity,
        dtypes=_dtypes(config),
        config=resolved_values(config),
        started_at=now(),
        batch_search=batch_search,
    )


def _dtypes(config: Config) -> RecordedDtypes:
    dtypes = asdict(dtypes_of(config))
    if config.parallel.strategy == "single":
        del dtypes["reduction"]
    return RecordedDtypes(**dtypes)


def _optimizer_names(optimizer: dict[str, Any]) -> str:
    """The name of the optimizer, and of each class that one of several has instead: `adamw, critic: SGD`."""
    others = {name: own for name, own in (optimizer.get("each") or {}).items() if "_target_" in own}
    return ", ".join([component_name(optimizer), *(f"{name}: {component_name(own)}" for name, own in others.items())])
