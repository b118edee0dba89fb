"""The W&B server, asked beside its client: is it there, is it alive, does it take the runs?

The client's wandb-core would hold on to a server that is silent.
"""

import base64
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from threading import Event, Thread
from typing import Any, Final, Self
from urllib.parse import urlsplit

from ampsweep.redaction import hide
from ampsweep.tracking.wandb.library import Login, current_login

_CONNECT_S: Final = 0.5
_ANSWER_S: Final = 10.0
_LARGEST: Final = 2**20
_BEAT_S: Final = 0.2
_WAIT_S: Final = 0.4
"""The time that a start of a training waits for the server's refusal; it began while that was being asked for."""

_VIEWER: Final = "query Viewer { viewer { username entity teams { edges { node { name } } } } }"
_ALIVE: Final = "query Viewer { viewer { username } }"
_ENTITY: Final = "query Entity($name: String!) { entity(name: $name) { available } }"

_INSTEAD: Final = "tracking.mode=offline trains without a server"

UNANSWERED: Final = (OSError, HTTPException, ValueError)
"""The errors that `ask` raises where there is no answer that makes sense."""


def takes_connections(url: str) -> bool:
    """Tell whether somebody listens at ``url``; of a server behind a proxy, where nobody here can tell: True."""
    there = urlsplit(url)
    host, port = there.hostname or "", there.port or (443 if there.scheme == "https" else 80)
    if there.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return True
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


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


def ask(login: Login, query: str, **variables: str) -> ServerAnswer:
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
        with urllib.request.build_opener(proxies, _NoRedirect).open(request, timeout=_ANSWER_S) as response:
            return ServerAnswer(response.status, _json(response.read(_LARGEST)))
    except urllib.error.HTTPError as error:
        with error:
            return ServerAnswer(error.code, _json(error.read(_LARGEST)))


def _json(text: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        content = json.loads(text)
        return content if isinstance(content, dict) else {}
    return {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """No redirects are followed: another address would be sent the key."""

    def redirect_request(self, *_: object) -> None:
        return None


class Heartbeat:
    """Small questions to a server in the background: one at the beginning, and one after another inside `beating`."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self.heard_at: float | None = None
        """When it last answered, on the clock of `time.monotonic`; None: never."""
        self.answer_s = 0.0
        """The longest time, in seconds, that it took for an answer."""
        Thread(target=self._ask, name="wandb heartbeat", daemon=True).start()

    @classmethod
    def here(cls) -> Self | None:
        """The heartbeat of the server that wandb is logged in to in this process; None without an API key."""
        login = current_login()
        return None if login is None else cls(login)

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

    def _ask(self) -> None:
        began = time.monotonic()
        with suppress(*UNANSWERED):
            status = ask(self._login, _ALIVE).status
            if status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS:
                self.heard_at = time.monotonic()
                self.answer_s = max(self.answer_s, self.heard_at - began)


class WandbAccess:
    """The server's permission to send it runs, asked for in the background from the beginning."""

    def __init__(self, login: Login, entity: str | None) -> None:
        """``entity`` is where the runs belong; None: to whom the key does."""
        self._login, self._entity = login, entity
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
            found = _refusal(self._login, self._entity)
            self._refusal = None if found is None else hide(found, beside={"api_key": self._login.key})


def _refusal(login: Login, entity: str | None) -> str | None:
    """The sentence of `WandbAccess.refusal`. Raises `UNANSWERED`."""
    told = ask(login, _VIEWER)
    if _refuses_key(told):
        return f"W&B: the server {login.url} refuses the API key: {told.reason}; {_INSTEAD}"
    if told.status != HTTPStatus.OK or entity is None or entity in _own_entities(told):
        return None
    if _lacks_entity(ask(login, _ENTITY, name=entity), entity):
        return f"W&B: the server {login.url} has no entity {entity!r}, or not for this API key; {_INSTEAD}"
    return None


def _refuses_key(told: ServerAnswer) -> bool:
    """A 403 that is no JSON is something else's, between here and W&B."""
    return told.status == HTTPStatus.UNAUTHORIZED or (told.status == HTTPStatus.FORBIDDEN and bool(told.content))


def _own_entities(told: ServerAnswer) -> set[str]:
    """The entities of the user whose key it is."""
    viewer = told.data.get("viewer")
    if not isinstance(viewer, dict):
        return set()
    names = [viewer.get("username"), viewer.get("entity")]
    with suppress(LookupError, TypeError):  # a server may tell of no teams
        names += [edge["node"]["name"] for edge in viewer["teams"]["edges"]]
    return {name for name in names if isinstance(name, str)}


def _lacks_entity(told: ServerAnswer, entity: str) -> bool:
    """An error is clear where it names the entity: a server that does not know the question refuses that."""
    if told.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return bool(told.content) and entity in told.reason
    if told.status != HTTPStatus.OK or "errors" in told.content or "entity" not in told.data:
        return False
    found = told.data["entity"]
    return found is None or (isinstance(found, dict) and found.get("available") is True)  # to somebody new
