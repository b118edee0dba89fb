"""The wandb library: what its errors say of the server, and its login."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

NO_ANSWER: Final = "the server does not answer"
CORE_ENDED: Final = "W&B's own process on this machine has ended"
_ANSWERED: Final = re.compile(r"returned error (?P<status>\d{3}): (?P<answer>\{.*\})$")


class WandbError(ValueError):
    """Raised, with one sentence, if W&B cannot do what it was asked for."""


def first_line(error: BaseException) -> str:
    """The first line of an error of wandb, without the advice and links that follow."""
    lines = [line.strip() for line in str(error).splitlines()]
    if len(lines) > 2 and "validation error" in lines[0]:  # pydantic: a headline, the field, what is wrong with it
        return f"{lines[1]}: {lines[2]}"
    return _as_answered(lines[0]) if lines else f"no answer from W&B's own process, {type(error).__name__}"


def error_clause(error: BaseException) -> str:
    """A clause about what wandb raised: what the server says, or that it says nothing."""
    *_, cause = _causes(error)
    return NO_ANSWER if isinstance(cause, TimeoutError) else first_line(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """``error``, what it was raised from, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _as_answered(line: str) -> str:
    """The server's own words, where wandb shows its answer as it came."""
    if (found := _ANSWERED.search(line)) is not None:
        with suppress(ValueError, LookupError, TypeError):
            message = json.loads(found["answer"])["errors"][0]["message"]
            status = found["status"]
            return f"the server {'refuses the API key' if status == '401' else f'answered {status}'}: {message}"
    return line


@dataclass(frozen=True)
class Login:
    """A W&B server and the API key for it, with what else it takes to reach it."""

    url: str
    key: str = field(repr=False)
    entity: str | None
    """The entity of runs that name none."""
    headers: dict[str, str] = field(repr=False)
    proxies: dict[str, str] = field(repr=False)


def current_login() -> Login | None:
    """The login of this process, after `wandb.login`; None where it is not by an API key.

    wandb 0.31 has its settings in public only together with a wandb-core, which `wandb.setup` starts.
    """
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
