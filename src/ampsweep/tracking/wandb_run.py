"""A run on Weights & Biases. Losing W&B never stops the training: it costs one line and a note in the record."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import MEASURED, METRICS, STEP
from ampsweep.record import OUTCOMES, SNAPSHOT_NAME, RunRecord
from ampsweep.tracking.history import HistoryFile
from ampsweep.tracking.wandb_core import end_wandb, first_line, lost_errors

if TYPE_CHECKING:
    import wandb

RunMode = Literal["online", "offline"]

_INIT_TIMEOUT_S: Final = 5.0
_FINISH_TIMEOUT_S: Final = 30.0
"""How long a server may keep the training waiting, where WANDB_INIT_TIMEOUT and WANDB_FINISH_TIMEOUT do not say."""


class WandbTracker:
    """Tracker that logs to W&B with the unmodified client, online or into files that `wandb sync` sends later.

    The config in W&B is the run's identity, flat, with its arm and hashes, and under `config` the resolved config: a
    sweep writes its own parameters (`precision`, `model`) at the top, over whatever has their names. Rows carry our own
    step axis, because W&B drops rows below its internal step. While the run goes on, its summary shows minimum, maximum
    and last value of each metric (one NaN makes the first two NaN); at the end the figures of the record take the place
    of those they name.

    An agent's environment (WANDB_SWEEP_ID, WANDB_RUN_ID) decides over run, project and entity. `finish` ends wandb in
    this process, together with any other run in it.
    """

    def __init__(
        self,
        config: TrackingConfig,
        mode: RunMode,
        *,
        group: str | None,
        say: Callable[[str], None],
        history: HistoryFile,
    ) -> None:
        """``history``, started before this, tells which rows an earlier process sent; ``say`` takes lines for the user.

        Raises:
            ValueError: a project, entity or tag that W&B does not take.
        """
        self._mode: RunMode = mode
        self._settings = _settings(config, group)
        self._say = say
        self._history = history
        self._run: wandb.Run | None = None
        self._directory: Path | None = None
        self._sent = 0
        self._measured: set[str] = set()
        self._error: str | None = None

    def start(self, record: RunRecord, directory: Path, *, resume_after: int | None) -> None:
        """Start the W&B run and fill ``record.wandb``: id, mode, url or directory, and the last step sent so far."""
        self._directory = directory.resolve()
        self._sent = max(self._history.reached, record.wandb.get("last_step", 0))
        resume = resume_after is not None or self._sent > 0
        record.wandb = {
            "id": record.wandb.get("id", record.run_id),
            "mode": self._mode,
            "last_step": self._sent,
        }
        failure = self._open(self._mode, record, directory.resolve(), resume=resume)
        if failure is not None and self._mode == "online":
            record.wandb |= {"mode": "offline", "reason": failure}
            self._say(f"W&B: this run goes on offline, since it could not start on the server: {failure}")
            failure = self._open("offline", record, directory.resolve(), resume=resume)
        if failure is not None:
            record.wandb["error"] = failure
            self._lose(failure)

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send a row, unless an earlier process of this run has."""
        if self._run is None or self._error is not None or step <= self._sent:
            return
        try:
            self._run.log({STEP: step, **row})
            self._measured.update(key for key in row if key.startswith(MEASURED))
        except lost_errors() as error:
            self._lose(first_line(error))
        else:
            self._sent = step

    def finish(self, record: RunRecord) -> None:
        """Send status, figures and files, end the W&B run and wandb-core, and note in ``record.wandb`` how it went."""
        run, self._run = self._run, None
        if run is not None:
            try:
                run.summary.update(_summary(record))
                for key in self._measured - record.summary.keys():
                    del run.summary[key]  # type: ignore[no-untyped-call]  # rows alone make no figure of the run
                self._send_snapshot(run)
                run.finish(exit_code=0 if record.status in OUTCOMES else 1)
            except lost_errors() as error:
                self._lose(first_line(error))
            finally:
                end_wandb()
            record.wandb["last_step"] = self._sent
        if self._error is not None:
            record.wandb["error"] = self._error

    def _open(self, mode: RunMode, record: RunRecord, directory: Path, *, resume: bool) -> str | None:
        """Start the W&B run in ``mode``; None, or why it did not start."""
        import wandb

        sweep, identity = "WANDB_SWEEP_ID" in os.environ, record.identity
        try:
            wandb.setup(settings=wandb.Settings(silent=True))  # init alone leaves what is said outside of runs
            run = wandb.init(
                id=None if sweep or "WANDB_RUN_ID" in os.environ else record.wandb["id"],
                name=f"{record.arm}-{identity.model}-b{identity.batch_size}-s{identity.seed}",
                job_type=identity.precision_mode,
                config=_config(record),
                dir=str(directory),
                mode=mode,
                resume="allow" if resume and mode == "online" else None,
                settings=self._settings.model_copy(),  # init writes into it
            )
            _define_metrics(run)
        except lost_errors() as error:
            end_wandb()
            os.environ.pop("WANDB_SERVICE", None)  # a parent's wandb-core, which still holds the failed run
            return first_line(error)
        self._run = run
        place = Path(run.sync_dir)
        if place.is_relative_to(directory):
            place = place.relative_to(directory)
        record.wandb["id"] = run.id
        record.wandb |= {"url": run.url} if mode == "online" else {"directory": place.as_posix()}
        return None

    def _send_snapshot(self, run: "wandb.Run") -> None:
        """Send the memory snapshot, where the run has left one, as an artifact."""
        import wandb

        assert self._directory is not None
        path = self._directory / SNAPSHOT_NAME
        if path.exists():
            artifact = wandb.Artifact(f"memory-snapshot-{run.id}", type="memory_snapshot")
            artifact.add_file(str(path), policy="immutable")  # not copied: it can be large, and nobody changes it
            run.log_artifact(artifact)

    def _lose(self, why: str) -> None:
        if self._error is None:
            self._error = why
            self._say(f"W&B: lost ({why}); the training goes on, and history.jsonl has every row")


def _settings(config: TrackingConfig, group: str | None) -> "wandb.Settings":
    """What is the same for every run of this process."""
    import wandb

    try:
        settings = wandb.Settings(
            finish_timeout_raises=True,
            console="off",
            silent=True,
            reinit="finish_previous",
            # Not a public setting of wandb 0.31, but it has no other for this: no samples of the machine every 15 s, as
            # the suite takes its own. Settings refuses names it does not know.
            x_disable_stats=True,
        )
        # A setting that is not made leaves the word to the environment.
        if "WANDB_SWEEP_ID" not in os.environ:
            settings.project = config.project
            if config.entity is not None:
                settings.entity = config.entity
        if config.tags:
            settings.run_tags = tuple(config.tags)
        if config.group is not None or "WANDB_RUN_GROUP" not in os.environ:
            settings.run_group = config.group or os.environ.get("WANDB_SWEEP_ID") or group
        if "WANDB_INIT_TIMEOUT" not in os.environ:
            settings.init_timeout = _INIT_TIMEOUT_S
        if "WANDB_FINISH_TIMEOUT" not in os.environ:
            settings.finish_timeout = _FINISH_TIMEOUT_S
    except (wandb.Error, ValueError) as error:
        raise ValueError(f"tracking: {first_line(error)}") from error
    return settings


def _config(record: RunRecord) -> dict[str, Any]:
    hashes = {"arm": record.arm, "pair_key": record.pair_key, "config_hash": record.config_hash}
    return asdict(record.identity) | hashes | {"config": record.config}


def _define_metrics(run: "wandb.Run") -> None:
    run.define_metric(STEP, hidden=True)
    for key in METRICS:
        samples = key.startswith("device/")
        run.define_metric(key, step_metric=STEP, summary="min,max,mean,last" if samples else "min,max,last")


def _summary(record: RunRecord) -> dict[str, Any]:
    facts = {
        "status": record.status,
        "error": record.error,
        "oom": None if record.oom is None else asdict(record.oom),
        "batch_search": None if record.batch_search is None else asdict(record.batch_search),
        "cut_short": record.cut_short,
        "proof": record.proof,
        "memory": record.memory,
        "contamination": record.contamination,
    }
    return record.summary | {key: value for key, value in facts.items() if value}
