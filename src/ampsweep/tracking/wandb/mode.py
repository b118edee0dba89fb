"""Whether a run is tracked on a W&B server, in files for later, or not at all."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.wandb.core import Login, current_login, end_wandb, first_line

Mode = Literal["online", "offline", "disabled"]

_MODES: Final = ("online", "offline", "disabled")
_LEGACY: Final = {"run": "online", "dryrun": "offline"}
"""Older names that WANDB_MODE may still hold."""

_SYNC: Final = "send runs later with `ampsweep sync DIRECTORY`"


def resolve_mode(config: TrackingConfig) -> tuple[Mode, str | None]:
    """The mode that ``config`` stands for here, and a line that tells the user (None where W&B is disabled).

    `auto` is what WANDB_MODE says; without it online where wandb finds an API key for its server (WANDB_API_KEY, netrc,
    its settings), else offline. Neither asks for a key nor uses the network; imports wandb unless it is disabled. Ends
    whatever wandb has going on in this process, so it is for before a run, not beside one.

    Raises:
        ValueError: an unknown mode, `online` without an API key, or an invalid WANDB_* variable or setting.
    """
    name, wanted = "tracking.mode", config.mode
    allowed: tuple[str, ...] = ("auto", *_MODES)
    if wanted == "auto" and (ordered := os.environ.get("WANDB_MODE")):
        name, wanted, allowed = "WANDB_MODE", ordered, (*_MODES, *_LEGACY)
    if wanted not in allowed:
        raise ValueError(f"{name} is {wanted!r}; allowed are {', '.join(allowed)}")
    wanted = _LEGACY.get(wanted, wanted)
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
    """Why wandb, in this environment, cannot log in to its server; None where it has an API key or token."""
    with _login(environment) as missing:
        return missing


def online_login() -> Login | None:
    """That of a run whose mode is online; None where it is not by an API key. As for `resolve_mode`, for before it."""
    with _login({"WANDB_MODE": "online"}) as missing:
        return current_login() if missing is None else None


@contextmanager
def _login(environment: Mapping[str, str]) -> Iterator[str | None]:
    """Yields why wandb is not logged in, inside."""
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
        end_wandb()  # what it has read was for this question only


@contextmanager
def changed_environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, the environment has ``values``, and nothing by the names whose value is None."""
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
