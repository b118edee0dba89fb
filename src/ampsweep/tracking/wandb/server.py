"""The W&B server, asked beside its client: is it there, and does it take the runs?

wandb would hold on to a server that is silent for a minute; a training waits for a second.
"""

import base64
import json
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final

from ampsweep.redaction import hide
from ampsweep.tracking.wandb.library import NO_ANSWER, Login

CLOSED: Final = "the server closes connections without an answer"
_LARGEST: Final = 2**20
_STOPPED_S: Final = 2.0

_VIEWER: Final = "query Viewer { viewer { username } }"
_STOPPED: Final = """
query RunStopped($entity: String!, $project: String!, $name: String!) {
    project(name: $project, entityName: $entity) { run(name: $name) { stopped } }
}
"""
_ENTITY: Final = "query Entity($name: String!) { entity(name: $name) { available } }"

UNANSWERED: Final = (OSError, HTTPException, ValueError)
"""The errors that `ask` raises where there is no answer that makes sense."""


@dataclass(frozen=True)
class ServerAnswer:
    """The status of an answer, and what it holds."""

    status: int
    content: dict[str, Any]
    """JSON, as W&B answers; empty where it is none."""

    @property
    def data(self) -> dict[str, Any]:
        found = self.content.get("data")
        return found if isinstance(found, dict) else {}

    @property
    def reason(self) -> str:
        """The server's own words about an error."""
        with suppress(LookupError, TypeError):
            return str(self.content["errors"][0]["message"]).splitlines()[0]
        return f"{self.status} {HTTPStatus(self.status).phrase}"


def ask(login: Login, query: str, *, within_s: float, **variables: str) -> ServerAnswer:
    """The server's answer to a GraphQL ``query``, whatever its status. Raises `UNANSWERED`."""
    request = urllib.request.Request(
        f"{login.url}/graphql",
        data=json.dumps({"query": query, "variables": variables}).encode(),
        headers={
            **login.headers,
            "Authorization": f"Basic {base64.b64encode(f'api:{login.key}'.encode()).decode()}",
            "Content-Type": "application/json",
            "User-Agent": "ampsweep",
        },
    )
    proxies = urllib.request.ProxyHandler({**urllib.request.getproxies(), **login.proxies})
    try:
        with urllib.request.build_opener(proxies, _NoRedirect).open(request, timeout=within_s) as response:
            return ServerAnswer(response.status, _json(response.read(_LARGEST)))
    except urllib.error.HTTPError as error:
        with error:
            return ServerAnswer(error.code, _json(error.read(_LARGEST)))


def _json(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """No redirects are followed: another address would be sent the key."""

    def redirect_request(self, *_: object) -> None:
        return None


def is_stopped(login: Login, entity: str, project: str, name: str) -> bool:
    """Tell whether the server has asked the run to stop; False where it does not say so within seconds.

    The `stop_fn` setting of wandb 0.31 would be called only some 15 s later.
    """
    try:
        data = ask(login, _STOPPED, within_s=_STOPPED_S, entity=entity, project=project, name=name).data
        return bool(data["project"]["run"]["stopped"])
    except (*UNANSWERED, LookupError, TypeError):
        return False


def trouble(login: Login, *, within_s: float) -> str | None:
    """The clause about what the server does instead of an answer; None where it answers."""
    try:
        told = ask(login, _VIEWER, within_s=within_s)
    except UNANSWERED as error:
        return _clause(error)
    if told.status < HTTPStatus.INTERNAL_SERVER_ERROR and told.status != HTTPStatus.TOO_MANY_REQUESTS:
        return None
    return f"the server answered {told.status} {HTTPStatus(told.status).phrase}"


def _clause(error: Exception) -> str:
    """A clause about a server from one of `UNANSWERED`."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return NO_ANSWER
    if isinstance(cause, (ConnectionResetError, HTTPException)):
        return CLOSED
    why = (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
    return f"no connection to the server: {why}"


def refusal(login: Login, entity: str | None, *, within_s: float) -> str | None:
    """The reason why the server will not have the runs, in one sentence without the key; None where it takes them.

    ``entity`` is where the runs belong; None: to whom the key does. None, too, where it gives no clear answer within
    that time: an outage must not keep anybody from training.
    """
    entity = entity or login.entity
    with suppress(*UNANSWERED):
        told = ask(login, _VIEWER, within_s=within_s)
        if _refuses_key(told):
            sentence = f"W&B: the server {login.url} refuses the API key: {told.reason}"
            return hide(sentence, beside={"api_key": login.key})
        if told.status != HTTPStatus.OK or entity is None:
            return None
        if _lacks_entity(ask(login, _ENTITY, within_s=within_s, name=entity), entity):
            return f"W&B: the server {login.url} has no entity {entity!r}, or not for this API key"
    return None


def _refuses_key(told: ServerAnswer) -> bool:
    """A 403 that is no JSON is something else's, between here and W&B."""
    return told.status == HTTPStatus.UNAUTHORIZED or (told.status == HTTPStatus.FORBIDDEN and bool(told.content))


def _lacks_entity(told: ServerAnswer, entity: str) -> bool:
    """An error is clear where it names the entity: a server that does not know the question refuses that."""
    if told.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return entity in told.reason
    if told.status != HTTPStatus.OK or "errors" in told.content:
        return False
    found = told.data.get("entity", {})
    return found is None or bool(found.get("available"))  # to somebody new
