"""Questions to a server about existing runs by W&B's public API; unlike in a training, its failure is an error."""

import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ampsweep.metrics import STEP
from ampsweep.socket_folder import socket_folder
from ampsweep.tracking.wandb.core import CoreLimit, abandon_wandb, end_wandb
from ampsweep.tracking.wandb.library import error_clause, lost_errors, silence_libraries
from ampsweep.tracking.wandb.run_settings import WandbPlace, changed_environment, missing_login

if TYPE_CHECKING:
    import wandb

LISTING_S: Final = 120
"""The time that the server may take for an answer about many runs; wandb-core tries again in that time."""

ASK_S: Final = 10
"""The time for an answer about one run."""

_SILENT_S: Final = 60.0
"""The time after which a wandb-core that has not moved on is killed; longer than each of its own limits here."""

_OF_NO_RUN: Final[Mapping[str, str | None]] = {
    **dict.fromkeys(("RUN_ID", "RUN_GROUP", "SWEEP_ID", "SWEEP_PARAM_PATH", "RESUME")),
    **dict.fromkeys(("NAME", "NOTES", "TAGS", "JOB_TYPE", "SERVICE")),
    "MODE": "online",
    "SILENT": "true",
}
"""The environment (WANDB_...) of a process that asks about runs of others, or sends them: of no run of its own, nor of
a sweep's agent, and with a wandb-core of its own, which can be killed."""


class WandbError(ValueError):
    """Raised, with one sentence, if W&B cannot do what it was asked for."""


@contextmanager
def wandb_server() -> Iterator[None]:
    """Log in to W&B's server for as long as the context lasts.

    Raises:
        WandbError: nobody is logged in, the server cannot be reached, or refuses the API key; or wandb has an invalid
            setting.
    """
    silence_libraries()
    environment = {f"WANDB_{name}": value for name, value in _OF_NO_RUN.items()}
    with changed_environment({**environment, "TMPDIR": socket_folder()}):
        try:
            missing = missing_login({})
        except ValueError as error:
            raise WandbError(str(error)) from error
        if missing is not None:
            raise WandbError(missing)
        try:
            require_server()
            yield
        finally:
            end_wandb()


def require_server() -> None:
    """Raise WandbError where the server cannot be reached, or refuses the API key."""
    import wandb

    settings = wandb.setup().settings
    try:
        with urllib.request.urlopen(settings.base_url, timeout=ASK_S):
            pass
    except urllib.error.HTTPError:
        pass  # an answer all the same
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise WandbError(f"the W&B server {settings.base_url} cannot be reached: {reason}") from error
    try:
        with CoreLimit(_SILENT_S):
            wandb.Api(timeout=ASK_S)
    except lost_errors() as error:
        abandon_wandb()
        raise WandbError(error_clause(error)) from error


@contextmanager
def wandb_api(about: object) -> Iterator["wandb.Api"]:
    """Yield W&B's public API, inside `wandb_server`; what it raises becomes a sentence that begins with ``about``.

    Raises:
        WandbError: no login, a wrong one, no answer, or one that refuses.
    """
    import wandb

    with (
        tempfile.TemporaryDirectory() as scratch,  # it makes an empty folder for each run that it lists
        changed_environment({"WANDB_DIR": scratch}),
        wandb_server(),
        errors_of_server(str(about)),
    ):
        yield wandb.Api(timeout=LISTING_S)


@contextmanager
def errors_of_server(about: str) -> Iterator[None]:
    """Raise what goes wrong with the server inside as a WandbError, a sentence that begins with `about`."""
    try:
        yield
    except lost_errors() as error:
        abandon_wandb()  # without waiting for what it still tries
        if isinstance(error, OSError) and error.filename is not None:
            raise  # a file of ours
        raise WandbError(f"{about}: {error_clause(error)}") from error


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
    """The run at ``path``, [ENTITY/]PROJECT/ID; None where the server has none. Raises `lost_errors`.

    Without ``with_steps`` none are looked up.
    """
    import wandb
    from wandb.apis.public.runs import RunNotFoundError
    from wandb.errors import CommError

    with CoreLimit(_SILENT_S) as limit:
        try:
            run = wandb.Api(timeout=ASK_S).run(path)
        except CommError as error:
            if isinstance(error.exc, RunNotFoundError):
                return None
            raise
        summary = dict(run.summary_metrics)  # as it was sent, without classes of wandb's own
        found: Counter[int] = Counter()
        for row in run.scan_history(keys=[STEP], use_cache=False) if with_steps else ():
            limit.moved()
            found[row[STEP]] += 1
        doubled = tuple(sorted(step for step, number in found.items() if number > 1))
        return RemoteRun(found.keys(), doubled, run.state, summary, run.url)


def steps_there(run: "wandb.Run", steps: Sequence[int]) -> Container[int]:
    """The ``steps`` of its history that the server has of a ``run`` just resumed. Raises `lost_errors`.

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
