"""What Hydra calls for each point, in whatever process its launcher put it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ampsweep.config import registry  # noqa: F401  (a launcher's worker composes with these schemas)
from ampsweep.config.resolved import to_config
from ampsweep.entries.children import train
from ampsweep.entries.directories import checkpoint_of, finished
from ampsweep.entries.progress import ProgressDisplay
from ampsweep.entries.request import RunRequest, new_record, now
from ampsweep.launch.isolated import ChildExit, run_isolated
from ampsweep.record import FILE_NAME, RunRecord
from ampsweep.tracking.wandb_process import WandbAddress

_ERROR_NAME = "error.txt"
"""Beside the record of a run whose process raised or died: what is known of it in full, such as a traceback."""


class Job:
    """Trains the point it is called with: in a fresh process, or by `single` in this one.

    Pickled by a launcher that has workers, it arrives there without the display.
    """

    def __init__(
        self,
        display: ProgressDisplay | None = None,
        single: Callable[[RunRequest], None] | None = None,
        wandb: WandbAddress | None = None,
        after_run: Callable[[], None] | None = None,
    ) -> None:
        self._display = display
        self._after_run = after_run
        self._single = single
        self._wandb = wandb

    def __reduce__(self) -> tuple[type["Job"], tuple[()]]:
        return Job, ()

    def __call__(self, composed: DictConfig) -> None:
        hydra = HydraConfig.get()
        config = to_config(composed)
        directory = Path(hydra.runtime.output_dir)
        if self._single is not None:
            keep_hydra_files(composed, directory)
            self._single(RunRequest(config, directory, group=config.tracking.group, wandb=self._wandb))
            return
        sweep = Path(hydra.sweep.dir)
        display = self._display or ProgressDisplay(1)
        if finished(sweep, config) is not None:
            with suppress(OSError):
                directory.rmdir()  # succeeds only on the empty one that Hydra has just made
            display.run_ends(f"{directory.name}: finished earlier")
            return
        if self._wandb is not None:
            self._wandb.prepare(config.tracking)
        keep_hydra_files(composed, directory)
        group = config.tracking.group or f"{config.name}_{sweep.name}"
        checkpoint = checkpoint_of(directory)
        train_point(RunRequest(config, directory, group=group, checkpoint=checkpoint, wandb=self._wandb), display)
        if self._after_run is not None:
            self._after_run()


def train_point(request: RunRequest, display: ProgressDisplay) -> None:
    """Train in a fresh process; whatever becomes of it stands in the record afterwards.

    Raises:
        KeyboardInterrupt: this process was asked to stop, after the run had ended.
    """
    display.run_begins(request.directory.name)
    (request.directory / _ERROR_NAME).unlink(missing_ok=True)  # of an earlier attempt
    ended = run_isolated(train, (request,), on_message=display.on_message)
    record = settle(request, ended)
    display.run_ends(f"{request.directory.name}: {_outcome(record)}")
    if record.status == "failed":
        display.say(f"{request.directory.name} failed: {record.error}")
    if ended.interrupted:
        raise KeyboardInterrupt


def settle(request: RunRequest, ended: ChildExit) -> RunRecord:
    """The run's record, completed by what only the parent knows: that the process died, and how."""
    if (request.directory / FILE_NAME).exists():
        record = RunRecord.read(request.directory)
    else:
        record = new_record(request.config, device=request.config.device)
    if ended.result is None and not ended.interrupted:
        error = ended.error or "the process ended without a result"
        (request.directory / _ERROR_NAME).write_text(error + "\n", encoding="utf-8")
        record.status = "failed"
        record.error = record.error or error.strip().splitlines()[-1]
        record.ended_at = record.ended_at or now()
    record.write(request.directory)
    return record


def keep_hydra_files(composed: DictConfig, directory: Path) -> None:
    """Write `.hydra/` as Hydra would; it must not be rewritten for a point that is finished and skipped."""
    folder = directory / ".hydra"
    folder.mkdir(parents=True, exist_ok=True)
    hydra = HydraConfig.get()
    OmegaConf.save(composed, folder / "config.yaml")
    OmegaConf.save(OmegaConf.create({"hydra": hydra}), folder / "hydra.yaml")
    OmegaConf.save(hydra.overrides.task, folder / "overrides.yaml")


def _outcome(record: RunRecord) -> str:
    figures: list[str] = [record.status if record.cut_short is None else "cut short"]
    if "val/loss" in record.summary:
        figures.append(f"val loss {record.summary['val/loss']:.4f}")
    if "perf/step_ms" in record.summary:
        figures.append(f"{record.summary['perf/step_ms']:.3g} ms a step")
    return ", ".join(figures) + (f" ({record.error})" if record.error else "")
