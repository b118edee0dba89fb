"""The trackers that a config asks for."""

from collections.abc import Callable
from contextlib import suppress

from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.base import Trackers
from ampsweep.tracking.history import HistoryFile
from ampsweep.tracking.wandb_mode import resolve_mode
from ampsweep.tracking.wandb_process import WandbAddress, WandbClient
from ampsweep.tracking.wandb_run import WandbTracker


def make_trackers(
    config: TrackingConfig, group: str | None, say: Callable[[str], None], wandb: WandbAddress | None = None
) -> Trackers:
    """The history file and then, unless it is disabled, W&B.

    ``group`` is the W&B group where neither the config nor a sweep names one. ``say`` takes lines for the user: which
    mode W&B is in and how to sync, and later what became of a lost server. W&B itself lives in the process at the
    address ``wandb``, or in this one where there is none.

    Raises:
        ValueError: a tracking mode that is unknown or impossible here, or a project, entity or tag W&B does not take.
    """
    history = HistoryFile()
    if wandb is not None and config.mode != "disabled":
        with suppress(EOFError, OSError):  # it has been killed; W&B then lives here
            client = WandbClient(wandb, config, group=group, say=say, history=history)
            if client.line is not None:
                say(client.line)
            return Trackers([history] if client.mode == "disabled" else [history, client])
    mode, line = resolve_mode(config)
    if line is not None:
        say(line)
    if mode == "disabled":
        return Trackers([history])
    return Trackers([history, WandbTracker(config, mode, group=group, say=say, history=history)])
