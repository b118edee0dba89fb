"""Outages: a W&B run is given up if it cannot be finished because its server does not accept what it is sent."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ampsweep.tracking.wandb.core import CORE_SILENT, Sending, abandon_wandb, kill_wandb_core, met, sendings
from ampsweep.tracking.wandb.library import NO_ANSWER, Login, TooLongError, lost_errors
from ampsweep.tracking.wandb.server import Heartbeat

if TYPE_CHECKING:
    import wandb

_EVERY_S: Final = 0.05
_LONGER_THAN_A_START: Final = 2
_LONGER_THAN_AN_ANSWER: Final = 10
"""Some of what is sent takes that many requests of which nothing shows."""
_TRIED_AGAIN_S: Final = 2.0
"""The longest time until wandb-core tries again, as `WandbPlace` sets it: what it met by then holds it up yet."""


@dataclass(frozen=True)
class Patience:
    """The time to wait for a server, in seconds."""

    errors_s: float = 0.25
    """Wait while it answers with errors only: a second try may do better."""
    silence_s: float = 0.7
    """Wait while it is silent: nothing that is being sent moves."""
    slow_s: float = 5.0
    """Longest wait for a silent server that was slow before."""
    num_answers: int = 4
    """Answers to other questions that a server gives before it is taken to ignore what it is sent."""


ONCE_MORE: Final = Patience(errors_s=0.1, silence_s=0.4, slow_s=1.0, num_answers=2)
"""The patience with a server that has been given up for the run before."""

COMMAND_PATIENCE: Final = Patience(errors_s=20.0, silence_s=20.0, slow_s=60.0, num_answers=50)
"""The patience of commands that wait for nothing but W&B."""


@dataclass
class SeenServer:
    """The server as the runs of a W&B process, one after another, have seen it."""

    heartbeat: Heartbeat | None = None
    given_up: str | None = None
    """The reason why the last run that has ended was left without it; None where it was not."""

    def listen(self, login: Login | None) -> None:
        """Ask the server whether it is there, in the background; one for which there is no API key is not asked."""
        if self.heartbeat is None or self.heartbeat.login != login:
            self.heartbeat = None if login is None else Heartbeat(login)
        if self.heartbeat is not None:
            self.heartbeat.ask_again()


class GivenUpError(TooLongError):
    """Raised when the server is given up; the text says why."""

    def __init__(self, why: str, *, is_silent: bool) -> None:
        super().__init__(why)
        self.is_silent = is_silent


class OutageWatch:
    """A watch, inside `with`, over the end of a run, which ends wandb-core where the server is out.

    wandb itself waits for a server as long as its finish_timeout, however hopeless, and for some answers longer. Here
    that is over once the server, or wandb-core, has outlasted our patience. What a ``heartbeat`` of the server took, or
    where it has none the ``usual_s`` that the run took to start, says how slow one is that is well.

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
        if self._given_up is None:
            return
        if error is not None:
            raise self._given_up from error
        abandon_wandb()  # the run ended just before its wandb-core did: what comes next begins another

    def _watch(self) -> None:
        found: tuple[Sending, ...] = ()
        moved_at = healthy_at = core_at = time.monotonic()
        num_answers = self._num_answers()
        while not self._over.wait(_EVERY_S):
            before = found
            try:
                found = sendings(self._run)
            except TimeoutError:
                if time.monotonic() - core_at > self._patience.silence_s:
                    self._give_up(GivenUpError(CORE_SILENT, is_silent=True))
                continue
            except lost_errors():  # the run itself is told the same
                return
            now = core_at = time.monotonic()
            stuck = next((one for one in found if one.trouble), None)
            if stuck is None:
                healthy_at = now
            if found != before:
                moved_at, num_answers = now, self._num_answers()
            if stuck is not None and now - healthy_at > self._patience.errors_s:
                self._give_up(GivenUpError(self._seen(stuck.trouble, stuck), is_silent=False))
            elif now - moved_at > self._unmoved_s() and self._had_time(num_answers):
                trouble = met(self._run, time.time() - (now - moved_at) - _TRIED_AGAIN_S)
                why = trouble or self._seen(NO_ANSWER, found[-1] if found else None)
                self._give_up(GivenUpError(why, is_silent=True))

    def _unmoved_s(self) -> float:
        """The time after which what does not move will not: a slow server has more of it than a quick one."""
        heartbeat, patience = self._heartbeat, self._patience
        if heartbeat is None or heartbeat.heard_at is None:
            slow_s = _LONGER_THAN_A_START * self._usual_s
        else:
            slow_s = _LONGER_THAN_AN_ANSWER * heartbeat.answer_s
        return max(patience.silence_s, min(slow_s, patience.slow_s))

    def _num_answers(self) -> int:
        return 0 if self._heartbeat is None else self._heartbeat.num_answers

    @property
    def _is_well(self) -> bool:
        """True where the server answers what it is asked beside what is being sent."""
        heartbeat = self._heartbeat
        return heartbeat is not None and heartbeat.heard_at is not None and heartbeat.trouble is None

    def _had_time(self, num_answers: int) -> bool:
        """Tell whether a server that is well had time enough: a busy machine slows its answers and all else alike."""
        return not self._is_well or self._num_answers() - num_answers >= self._patience.num_answers

    def _seen(self, what: str, at: Sending | None) -> str:
        """A clause about a server that takes nothing; of one that is well, with what it does not take."""
        if self._is_well:
            return what if at is None else f"{what} to {at.what}"
        trouble = None if self._heartbeat is None else self._heartbeat.trouble
        return trouble or what

    def _give_up(self, why: GivenUpError) -> None:
        if self._over.is_set():  # the run has ended after all, while this was found out
            return
        self._given_up = why
        self._over.set()
        kill_wandb_core()
