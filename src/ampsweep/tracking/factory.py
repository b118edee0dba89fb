"""The trackers that a config asks for."""

from collections.abc import Callable
from contextlib import suppress

from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.base import Trackers
from ampsweep.tracking.history import HistoryFile
from ampsweep.tracking.wandb.messages import SENDS
from ampsweep.tracking.wandb.process import WandbAddress, WandbClient
from ampsweep.tracking.wandb.settings import WandbPlace, resolve_mode


def make_trackers(
    config: TrackingConfig,
    group: str | None,
    say: Callable[[str], None],
    wandb: WandbAddress | None = None,
    on_stop: Callable[[str], None] = lambda reason: None,
) -> Trackers:
    """The history file and then, unless it is disabled, W&B.

    ``group`` is the W&B group where neither the config nor a sweep names one. ``say`` takes lines for the user: which
    mode W&B is in and how to sync, and later what became of a lost server; ``on_stop`` the reason why somebody ends the
    run through W&B. W&B itself lives in the process at the address ``wandb``, or in one of the run's own where there is
    none.

    Raises:
        ValueError: what `check_tracking` refuses.
    """
    if config.mode == "disabled":
        return Trackers([HistoryFile()])
    history = HistoryFile()
    for address in (wandb, None) if wandb is not None else (None,):
        with suppress(EOFError, OSError):  # it has been killed
            client = WandbClient(config, address, group=group, history=history, say=say, on_stop=on_stop)
            if client.line is not None:
                say(client.line)
            return Trackers([history] if client.mode == "disabled" else [history, client])
    say(f"W&B: lost (its process cannot be started); {SENDS}")
    return Trackers([history])


def check_tracking(config: TrackingConfig, wandb: WandbAddress | None) -> None:
    """Refuse what W&B would, before a run; asked of the process at the address ``wandb``, if there is one.

    That process asks the server, too, which may refuse the API key or the entity. One that cannot be had, or takes
    longer to answer than a training should wait, refuses nothing.

    Raises:
        ValueError: a tracking mode that is unknown or impossible here, a project, entity or tag W&B does not take, or
            what the server refuses.
    """
    if config.mode == "disabled":
        return
    if wandb is not None:
        with suppress(EOFError, OSError):
            wandb.check(config)
            return
    if resolve_mode(config)[0] != "disabled":
        WandbPlace.here(config, None).settings(config.tags)
