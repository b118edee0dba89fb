"""One question to a W&B server, beside its client, whose wandb-core would hold on to a server that is silent."""

import base64
import json
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final

from ampsweep.tracking.wandb.core import Login

UNANSWERED: Final = (OSError, HTTPException, ValueError)
"""What `answer` raises where there is none that makes sense."""

_PATIENCE_S: Final = 10.0
_LARGEST: Final = 2**20


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    content: dict[str, Any]
    """JSON, as W&B answers; empty where it is none."""

    @property
    def data(self) -> dict[str, Any]:
        found = self.content.get("data")
        return found if isinstance(found, dict) else {}

    @property
    def reason(self) -> str:
        """What the server says of an error."""
        with suppress(LookupError, TypeError):
            return str(self.content["errors"][0]["message"]).splitlines()[0]
        return f"{self.status} {HTTPStatus(self.status).phrase}"


def answer(login: Login, query: str, **variables: str) -> Answer:
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
        with urllib.request.build_opener(proxies, _NowhereElse).open(request, timeout=_PATIENCE_S) as response:
            return Answer(response.status, _json(response.read(_LARGEST)))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _json(error.read(_LARGEST)))


def _json(text: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        content = json.loads(text)
        return content if isinstance(content, dict) else {}
    return {}


class _NowhereElse(urllib.request.HTTPRedirectHandler):
    """Another address would be sent the key."""

    def redirect_request(self, *_: object) -> None:
        return None
