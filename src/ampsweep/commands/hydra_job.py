"""What Hydra calls for each point, in whatever process its launcher put it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import Container, DictConfig, OmegaConf

from ampsweep.config import registry  # noqa: F401  (a launcher's worker composes with these schemas)
from ampsweep.config.resolved import to_config
from ampsweep.record import write_atomically
from ampsweep.redaction import hidden, hide
from ampsweep.run.announcer import Speaker
from ampsweep.run.directories import checkpoint_of, finished, own_directory
from ampsweep.run.isolated import train_point
from ampsweep.run.request import RunRequest
from ampsweep.search.largest_batch import search_point
from ampsweep.sweep.predictions import PREDICT_RUN, SharedPredictions
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.settings import group_of


class Job:
    """Trains the point it is called with: in a fresh process, or by `single` in this one.

    Pickled by a launcher that has workers, it arrives there without the display.

    Args:
        num_points: how many are to be trained, as far as that is known: W&B is made ready for the next between two.
    """

    def __init__(
        self,
        display: Speaker | None = None,
        single: Callable[[RunRequest], None] | None = None,
        wandb: WandbAddress | None = None,
        after_run: Callable[[], None] | None = None,
        num_points: int = 0,
    ) -> None:
        self._predicted = SharedPredictions()
        self._display = display
        self._after_run = after_run
        self._single = single
        self._wandb = wandb
        self._num_left = num_points

    def __reduce__(self) -> tuple[type["Job"], tuple[()]]:
        return Job, ()

    def __call__(self, composed: DictConfig) -> None:
        hydra = HydraConfig.get()
        config = to_config(composed)
        directory = Path(hydra.runtime.output_dir)
        if self._single is not None:
            keep_hydra_files(composed, directory)
            group = config.tracking.group
            self._single(RunRequest(config, directory, group=group, wandb=self._wandb, predictor=PREDICT_RUN))
            return
        sweep = Path(hydra.sweep.dir)
        display = self._display or Speaker()
        if finished(sweep, config) is not None:
            with suppress(OSError):
                directory.rmdir()  # succeeds only on the empty one that Hydra has just made
            return
        directory = own_directory(directory)
        keep_hydra_files(composed, directory)
        _hide_in(sweep / "multirun.yaml")
        group = config.tracking.group or group_of(config.name, sweep)
        checkpoint = checkpoint_of(directory)
        request = RunRequest(
            config,
            directory,
            group=group,
            checkpoint=checkpoint,
            wandb=self._wandb,
            prediction=self._predicted.of(config),
            predictor=PREDICT_RUN,
        )
        if config.max_batch.search:
            search_point(request, composed, sweep, display)
        else:
            train_point(request, display)
        self._num_left -= 1
        if self._wandb is not None and self._num_left > 0:
            self._wandb.prepare(config.tracking)
        self._predicted.keep(directory, config)
        if self._after_run is not None:
            self._after_run()


def keep_hydra_files(composed: DictConfig, directory: Path) -> None:
    """Write `.hydra/` as Hydra would, without secrets; not to be rewritten for a point that is finished and skipped."""
    folder = directory / ".hydra"
    folder.mkdir(parents=True, exist_ok=True)
    hydra = HydraConfig.get()
    _save(composed, folder / "config.yaml")
    _save(OmegaConf.create({"hydra": hydra}), folder / "hydra.yaml")
    _save(OmegaConf.create(list(hydra.overrides.task)), folder / "overrides.yaml")


def _save(config: Container, path: Path) -> None:
    OmegaConf.save(OmegaConf.create(hidden(OmegaConf.to_container(config))), path)


def _hide_in(path: Path) -> None:
    """Hide the secrets in a file that Hydra has written."""
    text = path.read_text(encoding="utf-8")
    if (safe := hide(text)) != text:
        write_atomically(path, safe)
