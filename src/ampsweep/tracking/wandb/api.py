"""Questions to a server about existing runs by W&B's public API, in a process of their own; its failure is an error."""

import os
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ampsweep.metrics import STEP
from ampsweep.tracking.wandb.library import Login, WandbError
from ampsweep.tracking.wandb.process import WandbProcess
from ampsweep.tracking.wandb.run_settings import WandbPlace, missing_login, online_login
from ampsweep.tracking.wandb.server import refusal, trouble

if TYPE_CHECKING:
    import wandb

    from ampsweep.tracking.wandb.service import Caller

ASK_S: Final = 10
"""The time for an answer about one run."""
ALIVE_S: Final = 2.0
"""The time after which the end of a training leaves a silent server."""

_OF_NO_RUN: Final[Mapping[str, str | None]] = {
    **dict.fromkeys(("RUN_ID", "RUN_GROUP", "SWEEP_ID", "SWEEP_PARAM_PATH", "RESUME")),
    **dict.fromkeys(("NAME", "NOTES", "TAGS", "JOB_TYPE", "SERVICE")),
    "MODE": "online",
    "SILENT": "true",
    "DIR": None,
}
"""The environment (WANDB_...) of a process that asks about runs of others, or sends them: of no run of its own, nor of
a sweep's agent."""


def with_server(function: Callable[..., Any], *arguments: Any, silence_s: float, **listening: Any) -> Any:
    """Call ``function(caller, *arguments)`` in a process of its own and return its result; see `WandbAddress.call`.

    Raises:
        WandbError: it takes too long, or raises that.
        OSError: a file is at fault.
    """
    with WandbProcess() as process:
        return process.address.call(function, *arguments, silence_s=silence_s, **listening)


def log_in(within_s: float = ASK_S) -> Login:
    """Have this process, which is of no run, ask the server from now on.

    Raises:
        WandbError: nobody is logged in, the server cannot be reached, or refuses the API key; or wandb has an invalid
            setting.
    """
    for name, value in _OF_NO_RUN.items():
        os.environ.pop(f"WANDB_{name}", None)
        if value is not None:
            os.environ[f"WANDB_{name}"] = value
    try:
        missing = missing_login({})
        login = online_login()
    except ValueError as error:
        raise WandbError(str(error)) from error
    if missing is not None or login is None:
        raise WandbError(missing or "wandb is not logged in by an API key")
    if (met := trouble(login, within_s=within_s)) is not None:
        raise WandbError(f"the W&B server {login.url} cannot be reached: {met}")
    if (refused := refusal(login, None, within_s=within_s)) is not None:
        raise WandbError(refused)
    return login


def require_server(caller: "Caller") -> None:
    """Raise WandbError as `log_in` does."""
    log_in()


@dataclass(frozen=True)
class RemoteRun:
    """A run as the server shows it."""

    steps: Container[int]
    """Steps of the history that it has rows of."""
    doubled: tuple[int, ...]
    """Those of which it has more rows than one."""
    state: str
    """In W&B's words: running, finished, failed, crashed, preempted..."""
    summary: dict[str, Any]
    url: str


def run_path(place: WandbPlace, id: str) -> str:
    """[ENTITY/]PROJECT/ID."""
    return "/".join(part for part in (place.entity, place.project, id) if part is not None)


def remote_run(path: str, *, with_steps: bool) -> RemoteRun | None:
    """The run at ``path``, [ENTITY/]PROJECT/ID; None where the server has none.

    Without ``with_steps`` none are looked up.
    """
    import wandb
    from wandb.apis.public.runs import RunNotFoundError
    from wandb.errors import CommError

    try:
        run = wandb.Api(timeout=ASK_S).run(path)
    except CommError as error:
        if isinstance(error.exc, RunNotFoundError):
            return None
        raise
    summary = dict(run.summary_metrics)  # as it was sent, without classes of wandb's own
    found = Counter(row[STEP] for row in run.scan_history(keys=[STEP], use_cache=False)) if with_steps else Counter()
    doubled = tuple(sorted(step for step, number in found.items() if number > 1))
    return RemoteRun(found.keys(), doubled, run.state, summary, run.url)


def steps_there(run: "wandb.Run", steps: Sequence[int]) -> Container[int]:
    """The ``steps`` of its history that the server has of a ``run`` just resumed.

    As a rule these are the first, as many as it has rows, since rows are sent in their order; otherwise it is asked.
    """
    summary: Any = run.summary
    number = run.starting_step
    if number == 0:
        return ()
    if number <= len(steps) and steps[number - 1] == summary.get(STEP):
        return frozenset(steps[:number])
    found = remote_run(run.path, with_steps=True)
    return () if found is None else found.steps
