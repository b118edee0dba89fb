"""The W&B server: asked beside its client whether it is there and takes the runs, and by it about existing runs.

wandb would hold on to a server that is silent for a minute; a training waits for a second.
"""

import os
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from ampsweep.metrics import STEP
from ampsweep.record.parts import WandbFacts
from ampsweep.redaction import hide
from ampsweep.tracking.wandb.library import NO_ANSWER, Login, WandbError, find_login
from ampsweep.tracking.wandb.process import WandbProcess

if TYPE_CHECKING:
    import wandb
    from wandb.apis.public import Run

    from ampsweep.tracking.wandb.service import Caller

ASK_S: Final = 10
"""The time for an answer about one run."""
ALIVE_S: Final = 2.0
"""The time after which the end of a training leaves a silent server."""

_OF_A_RUN: Final = (
    *("RUN_ID", "RUN_GROUP", "SWEEP_ID", "SWEEP_PARAM_PATH", "RESUME"),
    *("NAME", "NOTES", "TAGS", "JOB_TYPE", "SERVICE", "DIR"),
)
"""Variables (WANDB_...) of a run or of a sweep's agent: no matter of a process that asks about runs of others."""


_VIEWER: Final = "query Viewer { viewer { username } }"
_ENTITY: Final = "query Entity($name: String!) { entity(name: $name) { available } }"


@dataclass(frozen=True)
class _Answer:
    status: int
    phrase: str
    """The words of the status, such as `Not Found`."""
    content: dict[str, Any]
    """JSON, as W&B answers; empty where it is none."""

    @property
    def reason(self) -> str:
        """The server's own words about an error."""
        with suppress(LookupError, TypeError):
            return str(self.content["errors"][0]["message"]).splitlines()[0]
        return f"{self.status} {self.phrase}"


def _ask(login: Login, query: str, *, within_s: float, **variables: str) -> _Answer:
    """The server's answer to a GraphQL query.

    Raises:
        WandbError: a clause about a server that does not answer, or only that it is in trouble.
    """
    import requests  # only here: no training waits for the import

    try:
        response = requests.post(
            f"{login.url}/graphql",
            json={"query": query, "variables": variables},
            auth=("api", login.key),
            headers={**login.headers, "User-Agent": "ampsweep"},
            proxies=login.proxies,
            timeout=within_s,
            allow_redirects=False,  # another address would be sent the key
        )
    except requests.Timeout as error:
        raise WandbError(NO_ANSWER) from error
    except requests.RequestException as error:
        raise WandbError(_clause(error)) from error
    status = response.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise WandbError(f"the server answered {status} {response.reason}")
    content = None
    with suppress(requests.JSONDecodeError):
        content = response.json()
    return _Answer(status, response.reason, content if isinstance(content, dict) else {})


def _clause(cause: BaseException) -> str:
    deeper = cause.__cause__ or cause.__context__
    if deeper is not None:
        return _clause(deeper)
    if isinstance(cause, TimeoutError):
        return NO_ANSWER
    why = (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
    return f"no connection to the server: {why}"


def refusal(login: Login, entity: str | None, *, within_s: float) -> str | None:
    """The reason why the server will not have the runs, in one sentence without the key; None where it takes them.

    ``entity`` is where the runs belong; None: to whom the key does. None, too, where it gives no clear answer.

    Raises:
        WandbError: a clause about a server that does not answer or is in trouble.
    """
    entity = entity or login.entity
    told = _ask(login, _VIEWER, within_s=within_s)
    # A 403 that is no JSON is something else's, between here and W&B.
    if told.status == HTTPStatus.UNAUTHORIZED or (told.status == HTTPStatus.FORBIDDEN and told.content):
        sentence = f"W&B: the server {login.url} refuses the API key: {told.reason}"
        return hide(sentence, beside={"api_key": login.key})
    if told.status != HTTPStatus.OK or entity is None:
        return None
    if _lacks_entity(_ask(login, _ENTITY, within_s=within_s, name=entity), entity):
        return f"W&B: the server {login.url} has no entity {entity!r}, or not for this API key"
    return None


def _lacks_entity(told: _Answer, entity: str) -> bool:
    """An error is clear where it names the entity: a server that does not know the question refuses that."""
    if told.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return entity in told.reason
    if told.status != HTTPStatus.OK or "errors" in told.content:
        return False
    found = (told.content.get("data") or {}).get("entity", {})
    return found is None or bool(found.get("available"))  # to somebody new


def with_server(function: Callable[..., Any], *arguments: Any, silence_s: float, **listening: Any) -> Any:
    """Call ``function(caller, *arguments)`` in a process of its own and return its result; see `WandbAddress.call`.

    Raises:
        WandbError: it takes too long, or raises that.
        OSError: a file is at fault.
    """
    with WandbProcess() as process:
        return process.address.call(function, *arguments, silence_s=silence_s, **listening)


def log_in(caller: "Caller", within_s: float = ASK_S) -> None:
    """Have this process, which is of no run, ask the server from now on.

    Raises:
        WandbError: nobody is logged in, the server cannot be reached, or refuses the API key; or wandb has an invalid
            setting.
    """
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
    """[ENTITY/]PROJECT/ID."""
    return "/".join(part for part in (place.entity, place.project, id) if part is not None)


def remote_run(path: str) -> "Run | None":
    """The run at ``path``, [ENTITY/]PROJECT/ID; None where the server has none."""
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
    """The steps of the history that the server has."""
    return {row[STEP] for row in run.scan_history(keys=[STEP], use_cache=False)}


def steps_there(run: "wandb.Run", steps: Sequence[int]) -> Container[int]:
    """The ``steps`` of its history that the server has of a ``run`` just resumed.

    As a rule these are the first, as many as it has rows, since rows are sent in their order; otherwise it is asked.
    """
    number = run.starting_step
    if number == 0:
        return ()
    summary: Any = run.summary
    if number <= len(steps) and steps[number - 1] == summary.get(STEP):
        return frozenset(steps[:number])
    found = remote_run(run.path)
    return () if found is None else steps_on(found)
