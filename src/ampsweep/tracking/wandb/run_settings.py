"""The mode, place and settings of a run on W&B, from config, environment and login."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ampsweep.config.schema import TrackingConfig
from ampsweep.records.sections import WandbFacts
from ampsweep.redaction import hidden
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.library import Login, find_login, first_line

if TYPE_CHECKING:
    import wandb

Mode = Literal["online", "offline", "disabled"]

_MODES: Final = ("online", "offline", "disabled")

_SYNC: Final = "send runs later with `ampsweep sync DIRECTORY`"

_INIT_TIMEOUT_S: Final = 60.0  # the default of WANDB_INIT_TIMEOUT; no training waits for it

_RETRY_S: Final = {"min": 1, "max": 2}  # between two tries; wandb's default, up to a minute, would notice a server late


@dataclass(frozen=True)
class Access:
    """The mode of a run on W&B, with a line for the user (None: disabled) and an online run's login by API key."""

    mode: Mode
    line: str | None = None
    login: Login | None = None


def wanted_mode(config: TrackingConfig) -> tuple[Literal["auto"] | Mode, str]:
    """The requested mode, and the setting that requests it: WANDB_MODE overrides `auto`; ValueError: unknown mode."""
    name, wanted = "tracking.mode", config.mode
    allowed: tuple[str, ...] = ("auto", *_MODES)
    if wanted == "auto" and (variable := os.environ.get("WANDB_MODE")):
        name, wanted, allowed = "WANDB_MODE", variable, _MODES
    if wanted not in allowed:
        raise ValueError(f"{name} is {wanted!r}; allowed are {', '.join(allowed)}")
    mode: Any = wanted
    return mode, name


def find_access(config: TrackingConfig) -> Access:
    """Resolve the mode: `auto` is online if wandb can log in, else offline. Call it before a run (see `find_login`).
    Raises ValueError for an unknown mode, `online` without an API key, or an invalid WANDB_* variable or setting."""
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
    """Seconds that the end of a run may wait for W&B, if the user has set them."""
    given = os.environ.get("WANDB_FINISH_TIMEOUT")
    return None if given is None else float(given)


def group_of(name: str, directory: Path) -> str:
    return f"{name}_{directory.name}"


def place_here(config: TrackingConfig, group: str | None) -> WandbFacts:
    """Project, entity, group (by default ``group``) and sweep of a run that starts in this process; None is left to
    wandb. An agent's environment (WANDB_SWEEP_ID, WANDB_PROJECT) decides project and entity."""
    of_agent, found = is_agents_run(), os.environ.get
    sweep = found("WANDB_SWEEP_ID")
    return WandbFacts(
        project=found("WANDB_PROJECT") if of_agent else config.project,
        entity=found("WANDB_ENTITY") if of_agent else config.entity or found("WANDB_ENTITY"),
        group=config.group or found("WANDB_RUN_GROUP") or sweep or group,
        sweep=sweep,
    )


def run_settings(place: WandbFacts, tags: list[str], *, training: int | None = None) -> "wandb.Settings":
    """The wandb settings of a run, with system metrics of the process ``training`` (None: no system metrics). Raises
    ValueError for a project, entity or tag that W&B does not take."""
    import wandb

    # The environment decides what is not set here, under an agent project and entity too.
    wanted: dict[str, Any] = {
        "project": None if is_agents_run() else place.project,
        "entity": None if is_agents_run() else place.entity,
        "run_group": place.group,
        "sweep_id": place.sweep,
        "run_tags": tuple(hidden(tags)) or None,
        "init_timeout": None if "WANDB_INIT_TIMEOUT" in os.environ else _INIT_TIMEOUT_S,
        "x_stats_pid": training,
    }
    # wandb 0.31 has no public settings for these; it refuses unknown names.
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
