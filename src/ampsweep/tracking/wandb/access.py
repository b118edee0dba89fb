"""Whether the W&B server takes the runs of this machine: its API key and, where one is named, the entity."""

import time
from contextlib import suppress
from http import HTTPStatus
from threading import Thread
from typing import Final

from ampsweep.redaction import hide
from ampsweep.tracking.wandb.core import Login
from ampsweep.tracking.wandb.question import UNANSWERED, Answer, answer

_WAIT_S: Final = 0.4
"""How long whoever wants the answer waits for it: a start of a training, which began while it was being given."""

_INSTEAD: Final = "tracking.mode=offline trains without a server"

_VIEWER: Final = "query Viewer { viewer { username entity teams { edges { node { name } } } } }"
_ENTITY: Final = "query Entity($name: String!) { entity(name: $name) { available } }"


class WandbAccess:
    """The question whether runs may be sent, which is asked in the background from the beginning."""

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
    """Raises `UNANSWERED`."""
    told = answer(login, _VIEWER)
    if _refuses_key(told):
        return f"W&B: the server {login.url} refuses the API key: {told.reason}; {_INSTEAD}"
    if told.status != HTTPStatus.OK or entity is None or entity in _own_entities(told):
        return None
    if _lacks_entity(answer(login, _ENTITY, name=entity), entity):
        return f"W&B: the server {login.url} has no entity {entity!r}, or not for this API key; {_INSTEAD}"
    return None


def _refuses_key(told: Answer) -> bool:
    """A 403 that is no JSON is something else's, between here and W&B."""
    return told.status == HTTPStatus.UNAUTHORIZED or (told.status == HTTPStatus.FORBIDDEN and bool(told.content))


def _own_entities(told: Answer) -> set[str]:
    """Entities of whom the key is."""
    viewer = told.data.get("viewer")
    if not isinstance(viewer, dict):
        return set()
    names = [viewer.get("username"), viewer.get("entity")]
    with suppress(LookupError, TypeError):  # a server may tell of no teams
        names += [edge["node"]["name"] for edge in viewer["teams"]["edges"]]
    return {name for name in names if isinstance(name, str)}


def _lacks_entity(told: Answer, entity: str) -> bool:
    """An error is clear where it names the entity: a server that does not know the question refuses that."""
    if told.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return bool(told.content) and entity in told.reason
    if told.status != HTTPStatus.OK or "errors" in told.content or "entity" not in told.data:
        return False
    found = told.data["entity"]
    return found is None or (isinstance(found, dict) and found.get("available") is True)  # to somebody new
