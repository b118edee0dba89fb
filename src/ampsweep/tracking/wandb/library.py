"""The login that the wandb library finds, and clear sentences for its errors."""

import os
from dataclasses import dataclass, field
from typing import Final

NO_ANSWER: Final = "the server does not answer"
CORE_ENDED: Final = "W&B's own process on this machine has ended"


class WandbError(ValueError):
    """Raised, with one sentence, if W&B fails."""


def first_line(error: BaseException) -> str:
    """The first line of wandb's error, without advice and links."""
    lines = [line.strip() for line in str(error).splitlines()]
    if len(lines) > 2 and "validation error" in lines[0]:  # pydantic: a headline, the field, what is wrong with it
        return f"{lines[1]}: {lines[2]}"
    return lines[0] if lines else f"no answer from W&B's own process, {type(error).__name__}"


def error_clause(error: BaseException) -> str:
    """The server's own words in wandb's error, or that it does not answer."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return NO_ANSWER if isinstance(cause, TimeoutError) else first_line(error)


@dataclass(frozen=True)
class Login:
    url: str
    key: str = field(repr=False)
    entity: str | None  # the default entity of runs
    headers: dict[str, str] = field(repr=False)
    proxies: dict[str, str] = field(repr=False)


def find_login(**environment: str) -> tuple[Login | None, str | None]:
    """Return the login that wandb finds (WANDB_API_KEY, netrc, settings) with these variables, and why there is none.
    Both are None for a login without an API key. Asks neither the user nor the server. Call it before a run, because it
    ends wandb's activity in this process. Raises ValueError for an invalid WANDB_* variable or setting."""
    import wandb

    before = dict(os.environ)
    os.environ.update(environment, WANDB_SILENT="true")  # else login asks the server who it is
    try:
        if wandb.login(prompt=False, verify=False):
            return _current_login(), None
        return None, "wandb is not logged in (`wandb login` or WANDB_API_KEY)"
    except wandb.Error as error:  # a key of the wrong length, or two kinds of login at once
        return None, first_line(error)
    except ValueError as error:
        raise ValueError(f"wandb has an invalid setting: {first_line(error)}") from error
    finally:
        wandb.teardown()  # forget the settings that it has read
        os.environ.clear()
        os.environ.update(before)


def _current_login() -> Login | None:
    # wandb 0.31 has public settings only together with a wandb-core, which `wandb.setup` starts.
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
