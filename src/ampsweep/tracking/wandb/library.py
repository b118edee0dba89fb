"""The wandb library: its errors, what they say of the server, and its login.

What wandb has no public name for is used here and in the modules on wandb-core, each with its reason.
"""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

NO_ANSWER: Final = "the server does not answer"
CLOSED: Final = "the server closes connections without an answer"
CORE_ENDED: Final = "wandb-core, W&B's own process on this machine, has ended"
_ANSWERED: Final = re.compile(r"returned error (?P<status>\d{3}): (?P<answer>\{.*\})$")
_STATUS: Final = re.compile(r"HTTP (status )?(?P<status>\d{3})")


def lost_errors() -> tuple[type[Exception], ...]:
    """The errors that wandb raises when its server or its wandb-core is gone, or the disk is full.

    Those of `wandb.sdk` have no public name in wandb 0.31: waiting for an answer of a wandb-core that has ended,
    connecting to one that is not there, starting a run whose id it has already, and asking the server something.
    """
    import wandb
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError
    from wandb.sdk.lib.service.service_token import WandbServiceConnectionError
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError
    from wandb.sdk.mailbox.mailbox_handle import ServerResponseError

    core = (HandleAbandonedError, MailboxClosedError, ServerResponseError, WandbServiceConnectionError)
    return (wandb.Error, OSError, *core, WandbApiFailedError)


class TooLongError(OSError):
    """Raised where wandb-core had to be killed; the text says why."""


def silence_libraries() -> None:
    """Keep from the user what the libraries under wandb log: wandb's own measurements that do not arrive."""
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())


def first_line(error: BaseException) -> str:
    """The first line of an error of wandb, without the advice and links that follow."""
    lines = [line.strip() for line in str(error).splitlines()]
    if len(lines) > 2 and "validation error" in lines[0]:  # pydantic: a headline, the field, what is wrong with it
        return f"{lines[1]}: {lines[2]}"
    return _as_answered(lines[0]) if lines else f"no answer from wandb-core, {type(error).__name__}"


def error_clause(error: BaseException) -> str:
    """A clause about one of `lost_errors`: what the server says, that it says nothing, or that wandb-core is gone."""
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    if isinstance(error, TooLongError):
        return str(error)
    if _has_core_ended(error):
        return CORE_ENDED
    *_, cause = _causes(error)
    if isinstance(cause, TimeoutError) or (isinstance(cause, WandbApiFailedError) and cause.response is None):
        return NO_ANSWER
    return first_line(error)


def _has_core_ended(error: BaseException) -> bool:
    """Tell whether one of `lost_errors` came of a wandb-core that is gone, which wandb 0.31 often leaves unsaid.

    Its connection is the only one that wandb has in this process: what goes to the server goes through it.
    """
    from wandb.sdk.lib.service.service_token import WandbServiceConnectionError
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    gone = (HandleAbandonedError, MailboxClosedError, WandbServiceConnectionError, ConnectionError)
    return any(isinstance(one, gone) or isinstance(one.__context__, gone) for one in _causes(error))


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


def trouble_clause(trouble: str) -> str:
    """The trouble that wandb-core tells of as a clause about the server; the empty text where there is none."""
    if (found := _STATUS.search(trouble)) is not None:
        return answered(int(found["status"]))
    return trouble and not_connected(trouble.rpartition(": ")[2])


def not_connected(why: str) -> str:
    """A clause about a server to which no connection lasts."""
    return CLOSED if "reset by peer" in why or why == "EOF" else f"no connection to the server: {why}"


def answered(status: int) -> str:
    """A clause about a server that answered with an error."""
    with suppress(ValueError):
        return f"the server answered {status} {HTTPStatus(status).phrase}"
    return f"the server answered {status}"
