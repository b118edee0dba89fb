"""The wandb library: its login, and what its errors say of the server."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

NO_ANSWER: Final = "the server does not answer"
CORE_ENDED: Final = "W&B's own process on this machine has ended"


class WandbError(ValueError):
    """Raised, with one sentence, if W&B cannot do what it was asked for."""


def first_line(error: BaseException) -> str:
    """The first line of an error of wandb, without the advice and links that follow."""
    lines = [line.strip() for line in str(error).splitlines()]
    if len(lines) > 2 and "validation error" in lines[0]:  # pydantic: a headline, the field, what is wrong with it
        return f"{lines[1]}: {lines[2]}"
    return lines[0] if lines else f"no answer from W&B's own process, {type(error).__name__}"


def error_clause(error: BaseException) -> str:
    """A clause about what wandb raised: what the server says, or that it does not answer."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return NO_ANSWER if isinstance(cause, TimeoutError) else first_line(error)


@dataclass(frozen=True)
class Login:
    """A W&B server and the API key for it, with what else it takes to reach it."""

    url: str
    key: str = field(repr=False)
    entity: str | None
    """The entity of runs that name none."""
    headers: dict[str, str] = field(repr=False)
    proxies: dict[str, str] = field(repr=False)


def find_login(**environment: str) -> tuple[Login | None, str | None]:
    """The login that wandb finds (WANDB_API_KEY, netrc, its settings) with these variables set.

    Returns it, None where it is not by an API key, and the reason where wandb cannot log in. Neither asks for a key nor
    uses the network. Ends whatever wandb has going on in this process, so it is for before a run, not beside one.

    Raises:
        ValueError: a WANDB_* variable or a setting is invalid.
    """
    import wandb

    before = dict(os.environ)
    os.environ.update(environment, WANDB_SILENT="true")  # otherwise login says who is logged in, and asks the server
    try:
        if wandb.login(prompt=False, verify=False):
            return _current_login(), None
        return None, "wandb is not logged in (`wandb login` or WANDB_API_KEY)"
    except wandb.Error as error:  # a key of the wrong length, or two kinds of login at once
        return None, first_line(error)
    except ValueError as error:
        raise ValueError(f"wandb has an invalid setting: {first_line(error)}") from error
    finally:
        wandb.teardown()  # what it has read was for this question only
        os.environ.clear()
        os.environ.update(before)


def _current_login() -> Login | None:
    """wandb 0.31 has its settings in public only together with a wandb-core, which `wandb.setup` starts."""
    from wandb.sdk import wandb_setup

    settings = wandb_setup.singleton().settings
    if settings.api_key is None:
        return None
    proxies = {"http": settings.http_proxy, "https": settings.https_proxy}
    return Login(
        settings.base_url,
        settings.api_key,
        settings.entity,
        headers=dict(settings.x_extra_http_headers or {}),
        proxies={scheme: proxy for scheme, proxy in proxies.items() if proxy},
    )


def mark_as_sent(directory: Path) -> None:
    """Have `wandb sync` pass over the offline runs in ``directory``, whose rows it would send a second time.

    That is how `wandb sync` itself marks what it has sent; wandb 0.31 has no call for it.
    """
    for file in directory.glob("wandb/offline-run-*/*.wandb"):
        file.with_name(f"{file.name}.synced").touch()
