"""Asking a W&B server about runs that exist; here, unlike in a training, a server that fails is an error."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from ampsweep.tracking.wandb.core import abandon_wandb, first_line, is_unanswered, lost_errors
from ampsweep.tracking.wandb.mode import changed_environment
from ampsweep.tracking.wandb.sync import wandb_server

if TYPE_CHECKING:
    import wandb

ANSWER_S: Final = 120
"""How long the server may take for an answer; wandb-core tries again in that time."""


class WandbReadError(ValueError):
    """What was asked of W&B cannot be had, in one sentence."""


@contextmanager
def wandb_api(about: object) -> Iterator["wandb.Api"]:
    """Yields W&B's public API. What it raises inside, when the server cannot be had, becomes one sentence.

    Args:
        about: what the sentence is to begin with.

    Raises:
        WandbReadError: no login, a wrong one, no answer, or one that refuses.
    """
    import wandb

    # The public API makes an empty folder for each run that it lists.
    with tempfile.TemporaryDirectory() as scratch, changed_environment({"WANDB_DIR": scratch}):
        try:
            with _logged_in(about), _abandoned_when_lost():
                yield wandb.Api(timeout=ANSWER_S)
        except lost_errors() as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise  # a file of ours
            what = "the server does not answer" if is_unanswered(error) else first_line(error)
            raise WandbReadError(f"{about}: {what}") from error


@contextmanager
def _logged_in(about: object) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(wandb_server())
        except ValueError as error:
            raise WandbReadError(f"{about}: {error}") from error
        yield


@contextmanager
def _abandoned_when_lost() -> Iterator[None]:
    """Ends a wandb that has failed without waiting for what it still tries."""
    try:
        yield
    except lost_errors():
        abandon_wandb()
        raise
