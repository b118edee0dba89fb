"""Whether a W&B server is alive, which its client does not tell: asked of the server itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from threading import Event, Thread
from typing import Final, Self

from ampsweep.tracking.wandb.core import Login, current_login
from ampsweep.tracking.wandb.question import UNANSWERED, answer

_EVERY_S: Final = 0.2
_QUERY: Final = "query Viewer { viewer { username } }"


class WandbPulse:
    """Asks a server small questions in the background: one at the beginning, and more where it is listened to."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self.heard_at: float | None = None
        """When it last answered, on the clock of `time.monotonic`; None: never."""
        self.answer_s = 0.0
        """How long it took at most."""
        Thread(target=self._ask, name="wandb pulse", daemon=True).start()

    @classmethod
    def here(cls) -> Self | None:
        """That of the server which wandb is logged in to in this process; None without an API key."""
        login = current_login()
        return None if login is None else cls(login)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Inside, the server is asked again and again."""
        over = Event()

        def listen() -> None:
            while not over.is_set():
                self._ask()
                over.wait(_EVERY_S)

        Thread(target=listen, name="wandb pulse", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _ask(self) -> None:
        began = time.monotonic()
        with suppress(*UNANSWERED):
            status = answer(self._login, _QUERY).status
            if status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS:
                self.heard_at = time.monotonic()
                self.answer_s = max(self.answer_s, self.heard_at - began)
