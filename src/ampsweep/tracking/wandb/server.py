"""The W&B server, asked beside its client: is it there, is it alive, does it take the runs?

The client's wandb-core would hold on to a server that is silent.
"""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from threading import Event, Thread
from typing import Any, Final

from ampsweep.redaction import hide
from ampsweep.tracking.wandb.library import CLOSED, NO_ANSWER, Login, answered, not_connected

_ANSWER_S: Final = 10.0
_LARGEST: Final = 2**20
_BEAT_S: Final = 0.2
_SILENT_S: Final = 0.5
_LONGER_THAN_AN_ANSWER: Final = 4
_STOPPED_S: Final = 2.0
_WAIT_S: Final = 0.4
"""The time that a start of a training waits for the server's refusal; it began while that was being asked for."""

_VIEWER: Final = "query Viewer { viewer { username } }"
_STOPPED: Final = """
query RunStopped($entity: String!, $project: String!, $name: String!) {
    project(name: $project, entityName: $entity) { run(name: $name) { stopped } }
}
"""
_ENTITY: Final = "query Entity($name: String!) { entity(name: $name) { available } }"

_INSTEAD: Final = "tracking.mode=offline trains without a server"

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


def ask(login: Login, query: str, *, within_s: float = _ANSWER_S, **variables: str) -> ServerAnswer:
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


def require_alive(login: Login) -> None:
    """Raise ValueError, with a clause, where the server does not answer within seconds."""
    try:
        ask(login, _VIEWER, within_s=_STOPPED_S)
    except UNANSWERED as error:
        raise ValueError(_clause(error)) from error


class Heartbeat:
    """Small questions to a server in the background: is it there, and what does it do instead of an answer?

    It asks at each `ask_again`, and one question after another inside `beating`; other questions count, too.
    """

    def __init__(self, login: Login) -> None:
        self.login = login
        self.heard_at: float | None = None
        """When it last answered, on the clock of `time.monotonic`; None: never."""
        self.num_answers = 0
        self.answer_s = 0.0
        """The longest time, in seconds, that it took for an answer."""
        self._met: str | None = None
        self._asked_at: float | None = None
        """When the oldest question was asked after which nothing has been heard; None: something has."""
        self._told_at = 0.0
        """When the newest question was asked of which the end is known."""

    @property
    def trouble(self) -> str | None:
        """The clause about what it does instead of an answer; None where it answers, or has a moment for it yet."""
        if self._met is not None:
            return self._met
        asked_at = self._asked_at
        silent_s = max(_SILENT_S, _LONGER_THAN_AN_ANSWER * self.answer_s)
        return NO_ANSWER if asked_at is not None and time.monotonic() - asked_at > silent_s else None

    def ask_again(self) -> None:
        """Ask once more, without waiting for the answer."""
        Thread(target=self._ask, name="wandb heartbeat", daemon=True).start()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Ask the server again and again for as long as the context lasts."""
        over = Event()

        def listen() -> None:
            while not over.is_set():
                self._ask()
                over.wait(_BEAT_S)

        Thread(target=listen, name="wandb heartbeat", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def ask(self, query: str, **variables: str) -> ServerAnswer:
        """Ask the server something else, as `ask` does, and note how it took that. Raises `UNANSWERED`."""
        began = time.monotonic()
        self._asked_at = self._asked_at or began
        try:
            told = ask(self.login, query, within_s=_ANSWER_S, **variables)
        except UNANSWERED as error:
            self._note(began, _clause(error))
            raise
        is_well = told.status < HTTPStatus.INTERNAL_SERVER_ERROR and told.status != HTTPStatus.TOO_MANY_REQUESTS
        self._note(began, None if is_well else answered(told.status))
        return told

    def _note(self, began: float, met: str | None) -> None:
        if met is None:
            self.heard_at = time.monotonic()
            self.num_answers += 1
            self.answer_s = max(self.answer_s, self.heard_at - began)
        if began > self._told_at:  # an older question says nothing about now
            self._told_at, self._met, self._asked_at = began, met, None

    def _ask(self) -> None:
        with suppress(*UNANSWERED):
            self.ask(_VIEWER)


def _clause(error: Exception) -> str:
    """A clause about a server from one of `UNANSWERED`."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return NO_ANSWER
    if isinstance(cause, (ConnectionResetError, HTTPException)):
        return CLOSED
    return not_connected((cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__)


class WandbAccess:
    """The server's permission to send it runs, asked for in the background from the beginning."""

    def __init__(self, login: Login, entity: str | None) -> None:
        """``entity`` is where the runs belong; None: to whom the key does."""
        self.heartbeat, self._entity = Heartbeat(login), entity
        self._refusal: str | None = None
        self._wanted_by: float | None = None
        self._thread = Thread(target=self._ask, name="wandb access", daemon=True)
        self._thread.start()

    def refusal(self) -> str | None:
        """The reason why the server will not have the runs, in one sentence without the key; None where it takes them.

        None, too, where it has given no clear answer by then: an outage must not keep anybody from training. All calls
        together wait for half a second at most.
        """
        if self._wanted_by is None:
            self._wanted_by = time.monotonic() + _WAIT_S
        self._thread.join(max(0.0, self._wanted_by - time.monotonic()))
        return self._refusal

    def _ask(self) -> None:
        with suppress(*UNANSWERED):
            found = _refusal(self.heartbeat, self._entity)
            self._refusal = None if found is None else hide(found, beside={"api_key": self.heartbeat.login.key})


def _refusal(server: Heartbeat, entity: str | None) -> str | None:
    """The sentence of `WandbAccess.refusal`. Raises `UNANSWERED`."""
    told, url = server.ask(_VIEWER), server.login.url
    if _refuses_key(told):
        return f"W&B: the server {url} refuses the API key: {told.reason}; {_INSTEAD}"
    if told.status == HTTPStatus.OK and entity is not None and _lacks_entity(server.ask(_ENTITY, name=entity), entity):
        return f"W&B: the server {url} has no entity {entity!r}, or not for this API key; {_INSTEAD}"
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
