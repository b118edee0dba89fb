"""Running by Hydra: a command line is handed over, and Hydra calls a job with each config it has composed.

A job of a sweep is called in the process in which Hydra's launcher puts it.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import Container, DictConfig, OmegaConf

from ampsweep.commands.entry import FULL_ERROR
from ampsweep.config import hydra_config  # noqa: F401  (a launcher's worker composes with these schemas)
from ampsweep.config.compose import conf_dir
from ampsweep.config.hydra_config import to_config
from ampsweep.config.identity import resolved_values
from ampsweep.launch.signals import pass_on
from ampsweep.record import remove_leftovers, write_atomically
from ampsweep.redaction import hidden, hide
from ampsweep.run.directories import checkpoint_path, has_checkpoint, own_directory
from ampsweep.run.messages import MessagePrinter
from ampsweep.run.own_process import run_in_own_process
from ampsweep.run.point_runs import PointRuns
from ampsweep.run.request import RunRequest
from ampsweep.search.largest_batch import search_and_train
from ampsweep.sweep.shared_predictions import PREDICT_RUN, SharedPredictions
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run_settings import group_of


def request_of(composed: DictConfig, checkpoint: Path | None, wandb: WandbAddress | None) -> RunRequest:
    """The request for the one run of a command, in the directory that Hydra has made for it."""
    config = to_config(composed)
    return RunRequest(
        config,
        Path(HydraConfig.get().runtime.output_dir),
        group=config.tracking.group,
        checkpoint=checkpoint,
        wandb=wandb,
        predictor=PREDICT_RUN,
    )


class SweepEnded(BaseException):
    """Raised with a sentence where a sweep cannot go on, as on a full disk: past Hydra, which prints for Exceptions."""


class SweepJob:
    """Trains the point it is called with in a process of its own; a finished point is skipped.

    A launcher with workers pickles the job, which arrives there without the display.
    """

    def __init__(
        self,
        display: MessagePrinter | None = None,
        wandb: WandbAddress | None = None,
        after_run: Callable[[], None] | None = None,
    ) -> None:
        self._predicted = SharedPredictions()
        self._display, self._wandb, self._after_run = display, wandb, after_run
        self._runs: PointRuns | None = None

    def __reduce__(self) -> tuple[type["SweepJob"], tuple[()]]:
        return SweepJob, ()

    def __call__(self, composed: DictConfig) -> None:
        try:
            self._train(composed)
        except KeyboardInterrupt as interrupt:
            if self._display is None and _is_settled(interrupt):
                return
            raise
        except OSError as error:
            if self._display is None:  # in a worker: its launcher tells
                raise
            raise SweepEnded(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error

    def _train(self, composed: DictConfig) -> None:
        settings = HydraConfig.get()
        config = to_config(composed)
        directory, sweep = Path(settings.runtime.output_dir), Path(settings.sweep.dir)
        display = self._display or MessagePrinter()
        if self._runs is None:
            self._runs = PointRuns(sweep)
        if self._runs.finished(config) is not None:
            with suppress(OSError):
                directory.rmdir()  # succeeds only on the empty one that Hydra has just made
            return
        directory = own_directory(directory)
        keep_hydra_files(composed, directory)
        _hide_in(sweep / "multirun.yaml", beside=resolved_values(config))
        request = RunRequest(
            config,
            directory,
            group=config.tracking.group or group_of(config.name, sweep),
            checkpoint=directory if has_checkpoint(directory) else checkpoint_path(config),
            wandb=self._wandb,
            prediction=self._predicted.of(config),
            predictor=PREDICT_RUN,
        )
        if config.max_batch.search:
            search_and_train(request, composed, sweep, display)
        else:
            run_in_own_process(request, display)
        self._predicted.keep(directory, config)
        if self._after_run is not None:
            self._after_run()


def _is_settled(interrupt: KeyboardInterrupt) -> bool:
    """Let a launcher that has a handler for the signal behind `interrupt` act on it, now that the run is recorded.

    Returns True if it has no further use for the job. submitit has Slurm requeue the job, if it may, and leaves by
    SystemExit; else it raises an error, for there is no result: here the record is the result, and says why it ended.
    """
    try:
        pass_on(interrupt)
    except Exception:  # noqa: BLE001  whatever a launcher has for it
        return True
    return False


def hand_over(job: Callable[[DictConfig], None], argv: Sequence[str], config_name: str) -> None:
    """Let Hydra run `job` on this command line; the points were composed before, so Hydra has nothing to refuse."""
    before, shown = sys.argv, os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # exceptions as they are, not Hydra's rendering of them
    sys.argv = [before[0], *argv]
    try:
        hydra.main(config_path=str(conf_dir()), config_name=config_name, version_base="1.3")(job)()
    finally:
        sys.argv = before
        if shown is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = shown


def keep_hydra_files(composed: DictConfig, directory: Path) -> None:
    """Write `.hydra/` as Hydra would, without secrets; not to be called for a finished point, which keeps its own."""
    folder = directory / ".hydra"
    folder.mkdir(parents=True, exist_ok=True)
    settings = HydraConfig.get()
    named = OmegaConf.to_container(composed)
    remove_leftovers(*(folder / f"{name}.yaml" for name in ("config", "hydra", "overrides")))
    _save(composed, folder / "config.yaml", named)
    _save(OmegaConf.create({"hydra": settings}), folder / "hydra.yaml", named)
    _save(OmegaConf.create(list(settings.overrides.task)), folder / "overrides.yaml", named)


def _save(config: Container, path: Path, beside: object) -> None:
    write_atomically(path, OmegaConf.to_yaml(OmegaConf.create(hidden(OmegaConf.to_container(config), beside))))


def _hide_in(path: Path, beside: object) -> None:
    """Hide the secrets in a file that Hydra has written, those named in `beside` too."""
    text = path.read_text(encoding="utf-8")
    if (safe := hide(text, beside)) != text:
        write_atomically(path, safe)
