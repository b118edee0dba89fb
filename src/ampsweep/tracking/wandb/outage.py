"""Outages: a W&B run is given up if it cannot be finished because its server does not accept what it is sent."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ampsweep.tracking.wandb.library import NO_ANSWER, Sending, kill_wandb_core, lost_errors, sendings
from ampsweep.tracking.wandb.server import Heartbeat

if TYPE_CHECKING:
    import wandb

_EVERY_S: Final = 0.05
_LONGER_THAN_A_START: Final = 2
_LONGER_THAN_AN_ANSWER: Final = 4


@dataclass(frozen=True)
class Patience:
    """The time to wait for a server, in seconds."""

    errors_s: float = 0.25
    """Wait while it answers with errors only: a second try may do better."""
    silence_s: float = 0.6
    """Wait while it is silent: nothing that is being sent moves, and it does not answer."""
    slow_s: float = 5.0
    """Longest wait for a silent server that was slow before, and for one that answers while nothing moves."""


COMMAND_PATIENCE: Final = Patience(errors_s=20.0, silence_s=20.0, slow_s=60.0)
"""The patience of commands that wait for nothing but W&B."""


class GivenUpError(OSError):
    """Raised when the server is given up; the text says why."""

    def __init__(self, why: str, *, is_silent: bool) -> None:
        super().__init__(why)
        self.is_silent = is_silent


class OutageWatch:
    """A watch, inside `with`, over the end of a run, which ends wandb-core where the server is out.

    wandb itself waits for a server as long as its finish_timeout, however hopeless, and for some answers longer. Here
    that is over once the server has outlasted our patience. Much of what is sent takes several requests of which
    nothing shows, so that the server's ``heartbeat`` counts, too; where it has none, ``usual_s`` is how long the run
    took to start.

    Raises:
        GivenUpError: on leaving, in place of what wandb raises when its wandb-core has ended.
    """

    def __init__(
        self, run: "wandb.Run", patience: Patience, heartbeat: Heartbeat | None = None, *, usual_s: float
    ) -> None:
        self._run, self._patience, self._heartbeat, self._usual_s = run, patience, heartbeat, usual_s
        self._over = Event()
        self._stack = ExitStack()
        self._given_up: GivenUpError | None = None
        self._thread = Thread(target=self._watch, name="wandb outage", daemon=True)

    def __enter__(self) -> Self:
        if self._heartbeat is not None:
            self._stack.enter_context(self._heartbeat.beating())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._stack.close()
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
            if trouble is not None and now - healthy_at > self._patience.errors_s:
                self._give_up(GivenUpError(trouble, is_silent=False))
            elif self._is_silent(now, moved_at):
                self._give_up(GivenUpError(NO_ANSWER, is_silent=True))

    def _is_silent(self, now: float, moved_at: float) -> bool:
        heartbeat, patience = self._heartbeat, self._patience
        if heartbeat is None or heartbeat.heard_at is None:
            heard_at, slow_s = moved_at, _LONGER_THAN_A_START * self._usual_s
        else:
            heard_at, slow_s = max(moved_at, heartbeat.heard_at), _LONGER_THAN_AN_ANSWER * heartbeat.answer_s
        unheard_s = max(patience.silence_s, min(slow_s, patience.slow_s))
        return now - heard_at > unheard_s or now - moved_at > patience.slow_s

    def _give_up(self, why: GivenUpError) -> None:
        self._given_up = why
        self._over.set()
        kill_wandb_core()
