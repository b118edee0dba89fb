"""The mode and the place of a run on W&B, as config, environment and login settle them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ampsweep.config.schema import TrackingConfig
from ampsweep.record.parts import WandbFacts
from ampsweep.redaction import hidden
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.library import Login, find_login, first_line

if TYPE_CHECKING:
    import wandb

Mode = Literal["online", "offline", "disabled"]

_MODES: Final = ("online", "offline", "disabled")

_SYNC: Final = "send runs later with `ampsweep sync DIRECTORY`"

_INIT_TIMEOUT_S: Final = 60.0
"""The default of WANDB_INIT_TIMEOUT. No training waits for it."""

_RETRY_S: Final = {"min": 1, "max": 2}
"""Shortest and longest wait between two tries, so that a server that is back is noticed; wandb waits up to a minute."""


@dataclass(frozen=True)
class Access:
    """The mode of a run on W&B here, and what it takes."""

    mode: Mode
    line: str | None = None
    """A line that tells the user; None where W&B is disabled."""
    login: Login | None = None
    """The login of an online run; None where it is not by an API key."""


def wanted_mode(config: TrackingConfig) -> tuple[Literal["auto"] | Mode, str]:
    """The mode that is asked for, and the name of the setting that asks for it: WANDB_MODE decides over `auto`.

    Raises:
        ValueError: there is no such mode.
    """
    name, wanted = "tracking.mode", config.mode
    allowed: tuple[str, ...] = ("auto", *_MODES)
    if wanted == "auto" and (ordered := os.environ.get("WANDB_MODE")):
        name, wanted, allowed = "WANDB_MODE", ordered, _MODES
    if wanted not in allowed:
        raise ValueError(f"{name} is {wanted!r}; allowed are {', '.join(allowed)}")
    mode: Any = wanted
    return mode, name


def find_access(config: TrackingConfig) -> Access:
    """The access to W&B that ``config`` stands for here; `auto` is online where wandb can log in, else offline.

    Like `find_login`, for before a run. Imports wandb unless it is disabled.

    Raises:
        ValueError: an unknown mode, `online` without an API key, or an invalid WANDB_* variable or setting.
    """
    wanted, name = wanted_mode(config)
    if wanted == "disabled":
        return Access("disabled")
    login, missing = find_login(**({} if wanted == "auto" else {"WANDB_MODE": wanted}))
    if wanted == "offline":
        return Access("offline", f"W&B: offline, as {name} says; {_SYNC}")
    if missing is None:
        return Access("online", f"W&B: online, project {config.project}", login)
    if wanted == "auto":
        return Access("offline", f"W&B: offline, since {missing}; {_SYNC}")
    raise ValueError(f"{name} is online, but {missing}; allowed without a login are auto, offline and disabled")


def finish_timeout_s() -> float | None:
    """The seconds that the user lets the end of a run wait for W&B; None where nothing is said."""
    given = os.environ.get("WANDB_FINISH_TIMEOUT")
    return None if given is None else float(given)


def group_of(name: str, directory: Path) -> str:
    """The W&B group of the runs of the multirun in ``directory``, where the config names none."""
    return f"{name}_{directory.name}"


def place_here(config: TrackingConfig, group: str | None) -> WandbFacts:
    """The project, entity, group and sweep of a run that starts in this process; what is None is left to wandb.

    ``group`` is used where neither config nor environment names one. An agent's environment (WANDB_SWEEP_ID,
    WANDB_PROJECT) decides over project and entity.
    """
    of_agent, found = is_agents_run(), os.environ.get
    sweep = found("WANDB_SWEEP_ID")
    return WandbFacts(
        project=found("WANDB_PROJECT") if of_agent else config.project,
        entity=found("WANDB_ENTITY") if of_agent else config.entity or found("WANDB_ENTITY"),
        group=config.group or found("WANDB_RUN_GROUP") or sweep or group,
        sweep=sweep,
    )


def run_settings(place: WandbFacts, tags: list[str], *, training: int | None = None) -> "wandb.Settings":
    """The settings of wandb for a run at ``place``.

    ``training`` is the process that system metrics are taken of; without one there are none.

    Raises:
        ValueError: a project, entity or tag that W&B does not take.
    """
    import wandb

    # A setting that is not made leaves the word to the environment: under an agent project and entity, too.
    wanted: dict[str, Any] = {
        "project": None if is_agents_run() else place.project,
        "entity": None if is_agents_run() else place.entity,
        "run_group": place.group,
        "sweep_id": place.sweep,
        "run_tags": tuple(hidden(tags)) or None,
        "init_timeout": None if "WANDB_INIT_TIMEOUT" in os.environ else _INIT_TIMEOUT_S,
        "x_stats_pid": training,
    }
    # Not public settings of wandb 0.31, but it has no others for this: whose system metrics are taken, and shorter
    # waits. Settings refuses names it does not know.
    private: dict[str, Any] = {
        f"x_{client}_retry_wait_{end}_seconds": seconds
        for client in ("graphql", "file_stream", "file_transfer")
        for end, seconds in _RETRY_S.items()
    }
    try:
        return wandb.Settings(
            finish_timeout_raises=True,
            console="off",
            silent=True,
            reinit="finish_previous",
            x_disable_stats=training is None,
            **private,
            **{name: value for name, value in wanted.items() if value is not None},
        )
    except (wandb.Error, ValueError) as error:
        raise ValueError(f"tracking: {first_line(error)}") from error
