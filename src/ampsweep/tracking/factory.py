"""The trackers that a config asks for."""

from collections.abc import Callable

from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.base import Trackers
from ampsweep.tracking.history import HistoryFile
from ampsweep.tracking.wandb_mode import resolve_mode
from ampsweep.tracking.wandb_run import WandbTracker


def make_trackers(config: TrackingConfig, group: str | None, say: Callable[[str], None]) -> Trackers:
    """The history file and then, unless it is disabled, W&B.

    ``group`` is the W&B group where neither the config nor a sweep names one. ``say`` takes lines for the user: which
    mode W&B is in and how to sync, and later what became of a lost server.

    Raises:
        ValueError: a tracking mode that is unknown or impossible here, or a project, entity or tag W&B does not take.
    """
    history = HistoryFile()
    mode, line = resolve_mode(config)
    if line is not None:
        say(line)
    if mode == "disabled":
        return Trackers([history])
    return Trackers([history, WandbTracker(config, mode, group=group, say=say, history=history)])
