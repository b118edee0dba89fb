"""The mode and the place of a run on W&B, as config, environment and login settle them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from ampsweep.config.schema import TrackingConfig
from ampsweep.record.parts import WandbFacts
from ampsweep.redaction import hidden
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.library import Login, current_login, first_line

if TYPE_CHECKING:
    import wandb

Mode = Literal["online", "offline", "disabled"]

_MODES: Final = ("online", "offline", "disabled")
_LEGACY: Final = {"run": "online", "dryrun": "offline"}
"""Older names that WANDB_MODE may still hold."""

_SYNC: Final = "send runs later with `ampsweep sync DIRECTORY`"

_INIT_TIMEOUT_S: Final = 60.0
"""The default of WANDB_INIT_TIMEOUT. No training waits for it."""

_RETRY_S: Final = (1, 2)
"""Shortest and longest wait between two tries, so that a server that is back is noticed; wandb waits up to a minute."""


def wanted_mode(config: TrackingConfig) -> tuple[Literal["auto"] | Mode, str]:
    """The mode that is asked for, and the name of the setting that asks for it: WANDB_MODE decides over `auto`.

    Raises:
        ValueError: there is no such mode.
    """
    name, wanted = "tracking.mode", config.mode
    allowed: tuple[str, ...] = ("auto", *_MODES)
    if wanted == "auto" and (ordered := os.environ.get("WANDB_MODE")):
        name, wanted, allowed = "WANDB_MODE", ordered, (*_MODES, *_LEGACY)
    if wanted not in allowed:
        raise ValueError(f"{name} is {wanted!r}; allowed are {', '.join(allowed)}")
    mode: Any = _LEGACY.get(wanted, wanted)
    return mode, name


def resolve_mode(config: TrackingConfig) -> tuple[Mode, str | None]:
    """The mode that ``config`` stands for here, and a line that tells the user (None where W&B is disabled).

    `auto` is online where wandb finds an API key for its server (WANDB_API_KEY, netrc, its settings), else offline.
    Neither asks for a key nor uses the network; imports wandb unless it is disabled. Ends whatever wandb has going on
    in this process, so it is for before a run, not beside one.

    Raises:
        ValueError: an unknown mode, `online` without an API key, or an invalid WANDB_* variable or setting.
    """
    wanted, name = wanted_mode(config)
    if wanted == "disabled":
        return "disabled", None
    missing = missing_login({} if wanted == "auto" else {"WANDB_MODE": wanted})
    if wanted == "offline":
        return "offline", f"W&B: offline, as {name} says; {_SYNC}"
    if missing is None:
        return "online", f"W&B: online, project {config.project}"
    if wanted == "auto":
        return "offline", f"W&B: offline, since {missing}; {_SYNC}"
    raise ValueError(f"{name} is online, but {missing}; allowed without a login are auto, offline and disabled")


def missing_login(environment: Mapping[str, str]) -> str | None:
    """The reason why wandb, in this environment, cannot log in to its server; None where it has an API key or token."""
    with _login(environment) as missing:
        return missing


def online_login() -> Login | None:
    """The login of a run whose mode is online; None without an API key. Like `resolve_mode`, for before a run."""
    with _login({"WANDB_MODE": "online"}) as missing:
        return current_login() if missing is None else None


@contextmanager
def _login(environment: Mapping[str, str]) -> Iterator[str | None]:
    """Log in for as long as the context lasts; yield the reason where that is not possible."""
    import wandb

    try:
        try:
            # Where it is not silent, login says who is logged in, for which it asks the server.
            with changed_environment({"WANDB_SILENT": "true", **environment}):
                found = wandb.login(prompt=False, verify=False)
            missing = None if found else "wandb is not logged in (`wandb login` or WANDB_API_KEY)"
        except wandb.Error as error:  # a key of the wrong length, or two kinds of login at once
            missing = first_line(error)
        except ValueError as error:
            raise ValueError(f"wandb has an invalid setting: {first_line(error)}") from error
        yield missing
    finally:
        wandb.teardown()  # what it has read was for this question only


@contextmanager
def changed_environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Change environment variables for as long as the context lasts; None takes one away."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def finish_timeout_s() -> float | None:
    """The seconds that the user lets the end of a run wait for W&B; None where nothing is said."""
    given = os.environ.get("WANDB_FINISH_TIMEOUT")
    return None if given is None else float(given)


def group_of(name: str, directory: Path) -> str:
    """The W&B group of the runs of the multirun in ``directory``, where the config names none."""
    return f"{name}_{directory.name}"


@dataclass(frozen=True)
class WandbPlace:
    """The project, entity, group and sweep of a run; what is None is left to wandb and its environment."""

    project: str | None
    entity: str | None
    group: str | None
    sweep: str | None = None

    @classmethod
    def here(cls, config: TrackingConfig, group: str | None) -> Self:
        """The place of a run that starts in this process, in ``group`` where neither config nor environment names one.

        An agent's environment (WANDB_SWEEP_ID, WANDB_PROJECT) decides over project and entity.
        """
        of_agent, found = is_agents_run(), os.environ.get
        sweep = found("WANDB_SWEEP_ID")
        return cls(
            project=found("WANDB_PROJECT") if of_agent else config.project,
            entity=found("WANDB_ENTITY") if of_agent else config.entity or found("WANDB_ENTITY"),
            group=config.group or found("WANDB_RUN_GROUP") or sweep or group,
            sweep=sweep,
        )

    @classmethod
    def recorded(cls, facts: WandbFacts) -> Self:
        """The place that a record's facts about W&B tell."""
        return cls(project=facts.project, entity=facts.entity, group=facts.group, sweep=facts.sweep)

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def settings(self, tags: list[str], *, training: int | None = None) -> "wandb.Settings":
        """The settings of wandb for a run there.

        ``training`` is the process that system metrics are taken of; without one there are none.

        Raises:
            ValueError: a project, entity or tag that W&B does not take.
        """
        import wandb

        try:
            settings = wandb.Settings(
                finish_timeout_raises=True,
                console="off",
                silent=True,
                reinit="finish_previous",
                # Not public settings of wandb 0.31, but it has no others for this: whose system metrics are taken, and
                # shorter waits. Settings refuses names it does not know.
                x_disable_stats=training is None,
                x_graphql_retry_wait_min_seconds=_RETRY_S[0],
                x_graphql_retry_wait_max_seconds=_RETRY_S[1],
                x_file_stream_retry_wait_min_seconds=_RETRY_S[0],
                x_file_stream_retry_wait_max_seconds=_RETRY_S[1],
                x_file_transfer_retry_wait_min_seconds=_RETRY_S[0],
                x_file_transfer_retry_wait_max_seconds=_RETRY_S[1],
            )
            by_agent = is_agents_run()  # wandb then takes project and entity from nobody else
            for name, value in {
                "project": None if by_agent else self.project,
                "entity": None if by_agent else self.entity,
                "run_group": self.group,
                "sweep_id": self.sweep,
                "run_tags": tuple(hidden(tags)) or None,
                "init_timeout": None if "WANDB_INIT_TIMEOUT" in os.environ else _INIT_TIMEOUT_S,
                "x_stats_pid": training,
            }.items():
                if value is not None:  # a setting that is not made leaves the word to the environment
                    setattr(settings, name, value)
        except (wandb.Error, ValueError) as error:
            raise ValueError(f"tracking: {first_line(error)}") from error
        return settings
