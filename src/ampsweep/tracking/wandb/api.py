"""Questions to a server about existing runs by W&B's public API, in a process of their own; its failure is an error."""

import os
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Final

from ampsweep.metrics import STEP
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.wandb.library import WandbError, find_login
from ampsweep.tracking.wandb.process import WandbProcess
from ampsweep.tracking.wandb.server import refusal

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


def rows_by_step(run: "Run") -> Counter[int]:
    """The steps of the history that the server has, and the number of rows of each."""
    return Counter(row[STEP] for row in run.scan_history(keys=[STEP], use_cache=False))


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
    return () if found is None else rows_by_step(found)
