"""Queries to the W&B server: short ones without wandb, which would wait a minute for a silent server; runs with it."""

import os
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from ampsweep.metrics import STEP
from ampsweep.records.sections import WandbFacts
from ampsweep.redaction import hide
from ampsweep.tracking.wandb.library import NO_ANSWER, Login, WandbError, find_login
from ampsweep.tracking.wandb.process import WandbProcess
from ampsweep.user_code import chain_of

if TYPE_CHECKING:
    import wandb
    from wandb.apis.public import Run

    from ampsweep.tracking.wandb.service import Caller

ASK_S: Final = 10  # limit of an answer about a run
ALIVE_S: Final = 2.0  # limit of a first answer at the end of a training

_OF_A_RUN: Final = (
    *("RUN_ID", "RUN_GROUP", "SWEEP_ID", "SWEEP_PARAM_PATH", "RESUME"),
    *("NAME", "NOTES", "TAGS", "JOB_TYPE", "SERVICE", "DIR"),
)
"""Variables (WANDB_...) of a run or an agent, which must not influence queries about other runs."""

_VIEWER: Final = "query Viewer { viewer { username } }"
_ENTITY: Final = "query Entity($name: String!) { entity(name: $name) { available } }"


@dataclass(frozen=True)
class _Answer:
    status: int
    phrase: str
    content: dict[str, Any]  # empty unless the answer is a JSON object

    @property
    def reason(self) -> str:
        with suppress(LookupError, TypeError):
            return str(self.content["errors"][0]["message"]).splitlines()[0]
        return f"{self.status} {self.phrase}"


def _ask(login: Login, query: str, *, within_s: float, **variables: str) -> _Answer:
    """Send a GraphQL query; WandbError: the server does not answer, or with 429 or 5xx."""
    import requests  # slow, and only needed here

    try:
        response = requests.post(
            f"{login.url}/graphql",
            json={"query": query, "variables": variables},
            auth=("api", login.key),
            headers={**login.headers, "User-Agent": "ampsweep"},
            proxies=login.proxies,
            timeout=within_s,
            allow_redirects=False,  # another address would get the key
        )
    except requests.RequestException as error:
        *_, cause = chain_of(error)
        if isinstance(cause, TimeoutError):
            raise WandbError(NO_ANSWER) from error
        why = (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
        raise WandbError(f"no connection to the server: {why}") from error
    status = response.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise WandbError(f"the server answered {status} {response.reason}")
    content = None
    with suppress(requests.JSONDecodeError):
        content = response.json()
    return _Answer(status, response.reason, content if isinstance(content, dict) else {})


def refusal(login: Login, entity: str | None, *, within_s: float) -> str | None:
    """Return the reason why the server refuses runs of ``entity`` (None: the login's), without the key; None if it
    takes them or is not clear. Raises WandbError if the server does not answer or is in trouble."""
    entity = entity or login.entity
    viewer = _ask(login, _VIEWER, within_s=within_s)
    # A 403 without JSON comes from a proxy or firewall.
    if viewer.status == HTTPStatus.UNAUTHORIZED or (viewer.status == HTTPStatus.FORBIDDEN and viewer.content):
        sentence = f"W&B: the server {login.url} refuses the API key: {viewer.reason}"
        return hide(sentence, beside={"api_key": login.key})
    if viewer.status != HTTPStatus.OK or entity is None:
        return None
    if _lacks_entity(_ask(login, _ENTITY, within_s=within_s, name=entity), entity):
        return f"W&B: the server {login.url} has no entity {entity!r}, or not for this API key"
    return None


def _lacks_entity(answer: _Answer, entity: str) -> bool:
    if answer.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return entity in answer.reason  # else another server refuses the query
    if answer.status != HTTPStatus.OK or "errors" in answer.content:
        return False
    found = (answer.content.get("data") or {}).get("entity", {})
    return found is None or bool(found.get("available"))  # as a name for a new entity


def with_server(function: Callable[..., Any], *arguments: Any, silence_s: float, **listening: Any) -> Any:
    """Call ``function(caller, *arguments)`` in a W&B process of its own; see `WandbAddress.call`."""
    with WandbProcess() as process:
        return process.address.call(function, *arguments, silence_s=silence_s, **listening)


def log_in(caller: "Caller", within_s: float = ASK_S) -> None:
    """Prepare this process, which tracks no run, for queries to the server. Raises WandbError if nobody is logged in, a
    setting is invalid, or the server cannot be reached or refuses the key."""
    for name in _OF_A_RUN:
        os.environ.pop(f"WANDB_{name}", None)
    os.environ.update(WANDB_MODE="online", WANDB_SILENT="true")
    try:
        login, missing = find_login()
    except ValueError as error:
        raise WandbError(str(error)) from error
    if login is None:
        raise WandbError(missing or "wandb is not logged in by an API key")
    try:
        refused = refusal(login, None, within_s=within_s)
    except WandbError as error:
        raise WandbError(f"the W&B server {login.url} cannot be reached: {error}") from error
    if refused is not None:
        raise WandbError(refused)


def run_path(place: WandbFacts, id: str) -> str:
    """Join [ENTITY/]PROJECT/ID."""
    return "/".join(part for part in (place.entity, place.project, id) if part is not None)


def remote_run(path: str) -> "Run | None":
    """The run at ``path`` (see `run_path`); None if the server has none."""
    import wandb
    from wandb.apis.public.runs import RunNotFoundError
    from wandb.errors import CommError

    try:
        return wandb.Api(timeout=ASK_S).run(path)
    except CommError as error:
        if isinstance(error.exc, RunNotFoundError):
            return None
        raise


def steps_on(run: "Run") -> set[int]:
    return {row[STEP] for row in run.scan_history(keys=[STEP], use_cache=False)}


def steps_there(run: "wandb.Run", steps: Sequence[int]) -> Container[int]:
    """The ``steps`` that the server has of a resumed run: by their number and the last one, or by asking."""
    number = run.starting_step
    if number == 0:
        return ()
    summary: Any = run.summary
    if number <= len(steps) and steps[number - 1] == summary.get(STEP):
        return frozenset(steps[:number])
    found = remote_run(run.path)
    return () if found is None else steps_on(found)
