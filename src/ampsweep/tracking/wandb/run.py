"""A run on Weights & Biases, opened and closed by the wandb client."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from ampsweep.metrics import MEDIA, METRICS, STEP
from ampsweep.records import RunRecord
from ampsweep.records.outcome import exit_code
from ampsweep.records.sections import WandbFacts
from ampsweep.standard_streams import OUTPUT_NAME
from ampsweep.tracking.wandb.agent import is_agents_run, settle_stop
from ampsweep.tracking.wandb.content import run_config, run_name, send_end, send_record, tracking_of

if TYPE_CHECKING:
    import wandb


def sending_lock(directory: Path) -> FileLock:
    """The lock of the process that sends the run in ``directory``; its death releases it."""
    folder = directory / "wandb"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / "sending.lock")


def open_run(
    record: RunRecord, directory: Path, settings: "wandb.Settings", on_stop: Callable[[], None] | None = None
) -> "wandb.Run":
    """Start or resume the W&B run in the mode of ``record.wandb``, and add its url or directory there. ``on_stop`` is
    called in another thread when somebody stops the run on the server."""
    import wandb

    settings.stop_fn = on_stop
    mode: Any = record.wandb.mode
    run = wandb.init(
        id=None if is_agents_run() else record.wandb.id,
        name=run_name(record),
        notes=tracking_of(record).notes,
        job_type=record.identity.precision_mode,
        config=run_config(record),
        dir=str(directory),
        mode=mode,
        resume="allow" if mode == "online" else None,
        settings=settings,
    )
    run.define_metric(STEP, hidden=True)  # an axis of our own, because W&B drops rows below its internal step
    users = (f"{MEDIA}*", "train/*", "val/*")
    for key in (*users, *METRICS):  # the summary has the last value until the end of the run sets the figures
        run.define_metric(key, step_metric=STEP)
    if run.offline:
        place = Path(run.sync_dir)
        inside = place.relative_to(directory) if place.is_relative_to(directory) else place
        record.wandb.directory = inside.as_posix()
    else:
        record.wandb |= WandbFacts(entity=run.entity, project=run.project, url=run.url)
    record.wandb.id = run.id
    if (directory / OUTPUT_NAME).is_file():
        run.save(directory / OUTPUT_NAME, base_path=directory, policy="live")
    send_record(run, record)
    return run


def close_run(run: "wandb.Run", record: RunRecord, directory: Path) -> None:
    settle_stop(record)
    send_end(run, record, directory)
    run.finish(exit_code=exit_code(record.status))
