"""What a W&B server has of a run."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ampsweep.metrics import STEP

if TYPE_CHECKING:
    import wandb

ASK_S: Final = 10
"""How long a server may take for an answer."""


@dataclass(frozen=True)
class RemoteRun:
    """A run as the server shows it."""

    steps: Container[int]
    """Steps of the history that it has rows of."""
    state: str
    """In W&B's words: running, finished, failed, crashed, preempted..."""
    summary: dict[str, Any]
    url: str


def steps_there(run: "wandb.Run", steps: Sequence[int]) -> Container[int]:
    """Steps that the server has of a ``run`` just resumed; ``steps`` are those of its history. Raises `lost_errors`."""
    summary: Any = run.summary
    if (first := _first(run.starting_step, summary.get(STEP), steps)) is not None:
        return first
    found = remote_run(run.path, steps)
    return () if found is None else found.steps


def remote_run(path: str, steps: Sequence[int] | None = None) -> RemoteRun | None:
    """The run at ``path``, [ENTITY/]PROJECT/ID; None where the server has none. Raises `lost_errors`.

    ``steps`` are those of its history; None: nobody asks for them, none are looked up.
    """
    import wandb
    from wandb.apis.public.runs import RunNotFoundError
    from wandb.errors import CommError

    try:
        run = wandb.Api(timeout=ASK_S).run(path)
    except RunNotFoundError:
        return None
    except CommError as error:  # what wandb makes of it, unless it is being debugged
        if isinstance(error.exc, RunNotFoundError):
            return None
        raise
    summary = dict(run.summary)
    there = () if steps is None else _first(run.history_line_count or 0, summary.get(STEP), steps)
    if there is None:
        there = frozenset(row[STEP] for row in run.scan_history(keys=[STEP], use_cache=False))
    return RemoteRun(there, run.state, summary, run.url)


def _first(number: int, last: int | None, steps: Sequence[int]) -> Container[int] | None:
    """The first ``number`` of ``steps``, if ``last`` is the last of them.

    That is what a server has as a rule, since rows are sent in their order; otherwise it must be asked for each.
    """
    if number == 0:
        return ()
    return frozenset(steps[:number]) if number <= len(steps) and steps[number - 1] == last else None
