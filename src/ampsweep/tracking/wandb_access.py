"""Whether the W&B server takes the runs of this machine: its API key and, where one is named, the entity."""

import base64
import json
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from threading import Thread
from typing import Any, Final

from ampsweep.redaction import hide
from ampsweep.tracking.wandb_core import Login

_ASK_S: Final = 10.0
_WAIT_S: Final = 0.4
"""How long whoever wants the answer waits for it: a start of a training, which began while it was being given."""

_LARGEST: Final = 2**20
_INSTEAD: Final = "tracking.mode=offline trains without a server"

_VIEWER: Final = "query Viewer { viewer { username entity teams { edges { node { name } } } } }"
_ENTITY: Final = "query Entity($name: String!) { entity(name: $name) { available } }"


class WandbAccess:
    """The question whether runs may be sent, which is asked in the background from the beginning.

    It is no client's, whose wandb-core would hold on to a server that is silent.
    """

    def __init__(self, login: Login, entity: str | None) -> None:
        """``entity`` is where the runs belong; None: to whom the key does."""
        self._login, self._entity = login, entity
        self._refusal: str | None = None
        self._wanted_by: float | None = None
        self._thread = Thread(target=self._ask, name="wandb access", daemon=True)
        self._thread.start()

    def refusal(self) -> str | None:
        """Why the server will not have the runs, in one sentence without the key; None where it takes them.

        None, too, where it has given no clear answer by then: an outage must not keep anybody from training. All calls
        together wait for less than half a second.
        """
        if self._wanted_by is None:
            self._wanted_by = time.monotonic() + _WAIT_S
        self._thread.join(max(0.0, self._wanted_by - time.monotonic()))
        return self._refusal

    def _ask(self) -> None:
        with suppress(OSError, HTTPException, ValueError):  # nothing that we could make sense of
            found = _refusal(self._login, self._entity)
            self._refusal = None if found is None else hide(found, beside={"api_key": self._login.key})


@dataclass(frozen=True)
class _Answer:
    status: int
    content: dict[str, Any]
    """JSON, as W&B answers; empty where it is none."""

    @property
    def data(self) -> dict[str, Any]:
        return self.content.get("data") or {}

    @property
    def reason(self) -> str:
        """What the server says of an error."""
        with suppress(LookupError, TypeError):
            return str(self.content["errors"][0]["message"]).splitlines()[0]
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    @property
    def own_names(self) -> set[str]:
        """Entities of whom the key is."""
        with suppress(LookupError, TypeError):
            viewer = self.data["viewer"]
            return {viewer["username"], viewer["entity"], *(edge["node"]["name"] for edge in viewer["teams"]["edges"])}
        return set()

    @property
    def is_refused(self) -> bool:
        """Whether the key is; a 403 that is no JSON is something else's, between here and W&B."""
        return self.status == HTTPStatus.UNAUTHORIZED or (self.status == HTTPStatus.FORBIDDEN and bool(self.content))

    @property
    def has_no_entity(self) -> bool:
        if self.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            return bool(self.content)
        if self.status != HTTPStatus.OK or "errors" in self.content or "entity" not in self.data:
            return False
        return (self.data["entity"] or {"available": True}).get("available") is True  # as a name for somebody new


def _refusal(login: Login, entity: str | None) -> str | None:
    answer = _answer(login, _VIEWER)
    if answer.is_refused:
        return f"W&B: the server {login.url} refuses the API key: {answer.reason}; {_INSTEAD}"
    if answer.status != HTTPStatus.OK or entity is None or entity in answer.own_names:
        return None
    if _answer(login, _ENTITY, name=entity).has_no_entity:
        return f"W&B: the server {login.url} has no entity {entity!r}, or not for this API key; {_INSTEAD}"
    return None


def _answer(login: Login, query: str, **variables: str) -> _Answer:
    """Raises OSError, HTTPException or ValueError where there is none."""
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
        with urllib.request.build_opener(proxies, _NowhereElse).open(request, timeout=_ASK_S) as response:
            return _Answer(response.status, _json(response.read(_LARGEST)))
    except urllib.error.HTTPError as error:
        with error:
            return _Answer(error.code, _json(error.read(_LARGEST)))


def _json(text: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        content = json.loads(text)
        return content if isinstance(content, dict) else {}
    return {}


class _NowhereElse(urllib.request.HTTPRedirectHandler):
    """Another address would be sent the key."""

    def redirect_request(self, *_: object) -> None:
        return None
