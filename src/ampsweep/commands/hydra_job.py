"""Hydra's jobs: train a single run, or each point of a multirun, with a config that is composed and checked already.
Hydra's launcher chooses the process in which it calls a job of a sweep."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import hydra
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.types import HydraContext
from omegaconf import Container, DictConfig, OmegaConf

from ampsweep.commands.entry import FULL_ERROR
from ampsweep.config.compose import CONFIG_NAME, Point, Points, conf_dir, initialized, set_values, to_config
from ampsweep.config.identity import config_hash, training_hash
from ampsweep.config.overrides import parse_overrides, quoted
from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.launch.signal_handlers import forward_signal
from ampsweep.records import MULTIRUN_NAME, RunRecord, kept_checkpoints, remove_leftovers, write_atomically
from ampsweep.records.sections import StepPrediction
from ampsweep.redaction import hidden
from ampsweep.run.directories import checkpoint_path, finished_hashes, own_directory
from ampsweep.run.isolated_run import run_in_own_process
from ampsweep.run.messages import MessagePrinter
from ampsweep.run.request import RunRequest
from ampsweep.search.largest_batch import search_and_train
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run_settings import group_of

PREDICT_RUN: Final = NamedFunction[StepPrediction]("ampsweep.predict.run_prediction:predict_run")
PREDICT_POINT: Final = NamedFunction[StepPrediction]("ampsweep.predict.run_prediction:predict_point")
"""Called by a run, or a run of a sweep, after it has trained (`RunRequest.predictor`)."""


class SweepEnded(BaseException):
    """Raised when a sweep cannot go on, as on a full disk. No Exception, because Hydra prints for those."""


class SweepJob:
    """Trains the given point in a process of its own, unless it is finished. Pickles without its display."""

    def __init__(
        self,
        display: MessagePrinter | None = None,
        wandb: WandbAddress | None = None,
        after_run: Callable[[], None] | None = None,
    ) -> None:
        self._predictions: dict[str, StepPrediction] = {}
        """Predictions of earlier runs, by the hash of their config without seed and checkpoint."""
        self._display, self._wandb, self._after_run = display, wandb, after_run

    def __reduce__(self) -> tuple[type["SweepJob"], tuple[()]]:
        return SweepJob, ()

    def __call__(self, composed: DictConfig) -> None:
        try:
            self._train(composed)
        except KeyboardInterrupt as interrupt:
            if self._display is None and forward_signal(interrupt):
                return
            raise
        except OSError as error:
            if self._display is None:  # in a worker: its launcher reports the error
                raise
            raise SweepEnded(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error

    def _train(self, composed: DictConfig) -> None:
        settings = HydraConfig.get()
        config = to_config(composed)
        directory, sweep = Path(settings.runtime.output_dir), Path(settings.sweep.dir)
        display = self._display or MessagePrinter()
        if (wanted := config_hash(config)) in finished_hashes(sweep, mentioning=wanted):
            with suppress(OSError):
                directory.rmdir()  # succeeds only if it is the empty one that Hydra has just made
            return
        directory = own_directory(directory)
        keep_hydra_files(composed, directory)
        shared = training_hash(replace(config, seed=0))
        request = RunRequest(
            config,
            directory,
            group=config.tracking.group or group_of(config.name, sweep),
            checkpoint=directory if kept_checkpoints(directory) else checkpoint_path(config),
            wandb=self._wandb,
            prediction=self._predictions.get(shared),
            predictor=PREDICT_POINT,
            in_sweep=True,
        )
        if config.max_batch.search:
            search_and_train(request, composed, sweep, display)
        else:
            run_in_own_process(request, display)
            if (made := RunRecord.read(directory).prediction) is not None:
                self._predictions.setdefault(shared, made)
        if self._after_run is not None:
            self._after_run()


def run_one(composed: DictConfig, directory: Path, train: Callable[[], None]) -> None:
    """Call `train` as Hydra's job of a single run, in the directory of the run."""

    def job(own: DictConfig) -> None:
        try:
            keep_hydra_files(own, directory)
            train()
        except Exception as error:  # noqa: BLE001  Hydra would print the command line, secrets included
            failures.append(error)

    failures: list[Exception] = []
    with initialized():
        _settle(composed, "hydra.mode=RUN", f"hydra.run.dir={quoted(str(directory))}")
        run_job(job, composed, "hydra.run.dir", None, _context(composed))
    for failure in failures:
        raise failure


def run_all(points: Points, directory: Path, job: Callable[[DictConfig], None], order: Iterable[Point]) -> None:
    """Call `job` for the points in `order`, by the launcher of the multirun; its basic one takes them one by one."""
    composed, plugins = points.composed, Plugins.instance()
    with initialized():
        _settle(composed, "hydra.mode=MULTIRUN", f"hydra.sweep.dir={quoted(str(directory))}")
        composed.hydra.overrides.task = list(points.overrides)
        _save(composed, directory / MULTIRUN_NAME, [asdict(point.config) for point in points.points])
        launcher = plugins.instantiate_launcher(config=composed, hydra_context=_context(composed), task_function=job)
        is_basic = points.launcher == "BasicLauncher"
        calls = ([point.overrides] for point in order) if is_basic else [[point.overrides for point in order]]
        for number, together in enumerate(calls):
            for ended in launcher.launch(together, initial_job_idx=number):
                _ = ended.return_value  # raises the job's exception


def _settle(composed: DictConfig, *settings: str) -> None:
    """Set values of Hydra's own config, also for jobs that are composed later."""
    set_values(composed, parse_overrides(settings))
    composed.hydra.overrides.hydra.extend(settings)


def _context(composed: DictConfig) -> HydraContext:
    return HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks(composed))


def hand_over(argv: Sequence[str]) -> None:
    """Have Hydra answer a command line that asks for help, the composed config or shell completion."""
    before, shown = sys.argv, os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # exceptions as they are, not Hydra's rendering of them
    sys.argv = [before[0], *argv]
    try:
        hydra.main(config_path=str(conf_dir()), config_name=CONFIG_NAME, version_base="1.3")(SweepJob())()
    finally:
        sys.argv = before
        if shown is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = shown


def keep_hydra_files(composed: DictConfig, directory: Path) -> None:
    """Write `.hydra/` as Hydra would, without secrets. A finished point keeps its own: do not call this for one."""
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
