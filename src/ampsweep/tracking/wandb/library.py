"""The wandb library: its errors, its login, and wandb-core, the process that it starts beside ours.

What wandb has no public name for is used here and nowhere else, each with its reason.
"""

import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    import wandb

NO_ANSWER: Final = "the server does not answer"

_ASK_S: Final = 2
_ANSWER_S: Final = 1.0
_MOMENT_S: Final = 0.5
_ANSWERED: Final = re.compile(r"returned error (?P<status>\d{3}): (?P<answer>\{.*\})$")
_STOPPED: Final = """
query RunStopped($entity: String!, $project: String!, $name: String!) {
    project(name: $project, entityName: $entity) { run(name: $name) { stopped } }
}
"""


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
    """A clause about one of `lost_errors`: what the server says, or that it says nothing."""
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, TimeoutError) or (isinstance(cause, WandbApiFailedError) and cause.response is None):
        return NO_ANSWER
    return first_line(error)


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


def end_wandb() -> None:
    """Stop the wandb-core of this process and wait for its end; one that a parent shares with it stays."""
    import wandb

    # Where wandb-core ended with an error, wandb would exit this process with the same.
    with suppress(SystemExit, *lost_errors()):
        wandb.teardown()


def kill_wandb_core() -> None:
    """End the wandb-core of this process at once; code that waits for its answer gets an error within milliseconds."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name().startswith("wandb-core"):
                child.kill()
                child.wait()


def abandon_wandb() -> None:
    """Run `end_wandb` now, whatever wandb-core is busy with; code that waits for its answer gets an error."""
    killer = Timer(_MOMENT_S, kill_wandb_core)  # not before: a wandb that has lost its wandb-core does not wait for it
    killer.start()
    end_wandb()
    killer.join()


def mark_as_sent(directory: Path) -> None:
    """Have `wandb sync` pass over the offline runs in ``directory``, whose rows it would send a second time.

    That is how `wandb sync` itself marks what it has sent; wandb 0.31 has no call for it.
    """
    for file in directory.glob("wandb/offline-run-*/*.wandb"):
        file.with_name(f"{file.name}.synced").touch()


@dataclass(frozen=True)
class Sending:
    """Something that wandb-core is sending."""

    what: str
    progress: str
    trouble: str
    """The obstacle on its way to the server, such as "retrying HTTP 500"; empty where nothing does."""


def sendings(run: "wandb.Run") -> tuple[Sending, ...]:
    """All that wandb-core is sending for ``run``; to be asked in any thread and even while the run is being finished.

    Raises `lost_errors`. wandb 0.31 shows this to people while a run finishes, but has no public call for it.
    """
    import wandb
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # whose classes come into being when it is imported
    interface: Any = run._interface

    async def ask() -> Any:
        request = messages.Request(operations=messages.OperationStatsRequest())
        handle = await interface.deliver_async(messages.Record(request=request))
        return await handle.wait_async(timeout=_ANSWER_S)

    found = wandb.setup().asyncer.run(ask).response.operations_response.operation_stats.operations
    return tuple(Sending(one.desc, one.progress, one.error_status) for all in found for one in (all, *all.subtasks))


def execute_graphql(api: "wandb.Api", query: str, **variables: str) -> dict[str, Any]:
    """The data that the server answers a query with, or a mutation. Raises `lost_errors`.

    wandb 0.31 has no public call for questions that it does not ask itself.
    """
    data: dict[str, Any] = api._service_api.execute_graphql(query, variables)
    return data


def is_stopped(entity: str, project: str, name: str) -> bool:
    """Tell whether the server has asked the run to stop; False where it does not say so within seconds.

    The `stop_fn` setting of wandb 0.31 would be called only some 15 s later.
    """
    import wandb

    try:
        data = execute_graphql(wandb.Api(timeout=_ASK_S), _STOPPED, entity=entity, project=project, name=name)
    except lost_errors():
        return False
    return bool(((data["project"] or {}).get("run") or {}).get("stopped"))
