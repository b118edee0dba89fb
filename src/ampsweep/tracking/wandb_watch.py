"""Gives up on a W&B run that cannot be finished because its server does not take what it is sent."""

import time
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ampsweep.tracking.wandb_core import Sending, kill_wandb_core, lost_errors, sendings

if TYPE_CHECKING:
    import wandb

_EVERY_S: Final = 0.05
_LONGER: Final = 2


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for."""

    errors_s: float = 0.25
    """While all it has are errors: a second try may do better."""
    silence_s: float = 0.6
    """While nothing of what is being sent moves."""
    slow_s: float = 5.0
    """The same at most, for a server on which the start of the run took long, of which it is twice the time."""


OF_COMMANDS: Final = Patience(errors_s=20.0, silence_s=20.0, slow_s=60.0)
"""Where nothing but W&B is waited for."""


class GivenUpError(OSError):
    """The server was given up; the text says why."""

    def __init__(self, why: str, *, is_silent: bool) -> None:
        super().__init__(why)
        self.is_silent = is_silent


class WandbWatch:
    """Watches, inside `with`, over the end of a run, and ends wandb-core where nothing comes of it.

    wandb itself waits for a server as long as its finish_timeout, however hopeless. Here an end is hopeless once the
    server has outlasted our patience; ``usual_s`` is how long the start of the run took on it.

    Raises:
        GivenUpError: on leaving, in place of what wandb raises when its wandb-core has ended.
    """

    def __init__(self, run: "wandb.Run", patience: Patience, *, usual_s: float) -> None:
        self._run = run
        self._errors_s = patience.errors_s
        self._silence_s = max(patience.silence_s, min(_LONGER * usual_s, patience.slow_s))
        self._over = Event()
        self._given_up: GivenUpError | None = None
        self._thread = Thread(target=self._watch, name="wandb watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is not None and self._given_up is not None:
            raise self._given_up from error

    def _watch(self) -> None:
        before: tuple[Sending, ...] | None = None
        moved_at = healthy_at = time.monotonic()
        while not self._over.wait(_EVERY_S):
            try:
                found = sendings(self._run)
            except lost_errors():  # the run itself is told the same
                return
            now = time.monotonic()
            trouble = next((one.trouble for one in found if one.trouble), None)
            if trouble is None:
                healthy_at = now
            if found != before:
                before, moved_at = found, now
            if trouble is not None and now - healthy_at > self._errors_s:
                self._give_up(GivenUpError(trouble, is_silent=False))
            elif now - moved_at > self._silence_s:
                self._give_up(GivenUpError("the server does not answer", is_silent=True))

    def _give_up(self, why: GivenUpError) -> None:
        self._given_up = why
        self._over.set()
        kill_wandb_core()
