"""W&B in a process of its own: neither its start nor its rows take the training's time."""

import os
import pickle
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.wandb.comparison_page import ComparisonPage
from ampsweep.tracking.wandb.messages import Check, Opened, Prepare, Publish, Published
from ampsweep.tracking.wandb.place import WandbPlace

_KEY_BYTES: Final = 32
_MAIN: Final = "import sys; sys.path[:] = {path!r}; from ampsweep.tracking.wandb.service import main; main()"
_PATIENCE_S: Final = 60.0
"""How long the process may take to end once it has nothing to do."""


@dataclass(frozen=True)
class WandbAddress:
    """Where a W&B process listens, on this machine and while it lives."""

    path: str
    key: bytes

    def check(self, config: TrackingConfig) -> None:
        """Raises ValueError where a run could not be tracked so, or the server refuses it; see `check_tracking`."""
        with self.connect() as connection:
            connection.send(Check(config))
            opened: Opened = connection.recv()
        if opened.refusal is not None:
            raise ValueError(opened.refusal)

    def prepare(self, config: TrackingConfig) -> None:
        """Have wandb-core started for a run that will come; not before that is certain, as it leaves files behind."""
        with suppress(EOFError, OSError), self.connect() as connection:
            connection.send(Prepare(config))

    def publish(self, page: ComparisonPage, place: WandbPlace, directory: Path) -> Published:
        """Have a comparison put on W&B; waits until it is there, or until it is certain that it will not be."""
        with suppress(EOFError, OSError), self.connect() as connection:
            connection.send(Publish(page, place, directory))
            published: Published = connection.recv()
            return published
        return Published(problem="the W&B process ended")

    def connect(self) -> "Connection[Any, Any]":
        """A connection to it; raises OSError or EOFError where it has ended."""
        return Client(self.path, authkey=self.key)


class WandbProcess:
    """A process that tracks the runs of a command, one at a time; it lives inside `with`.

    It starts while the caller goes on. Signals do not reach it: it ends when this process leaves the context or dies,
    after it has finished the run it was tracking.
    """

    def __init__(self, expected: Sequence[TrackingConfig] = ()) -> None:
        """``expected`` is how its runs will be tracked, as far as known: it asks the server about them at once."""
        self._key, self._expected = secrets.token_bytes(_KEY_BYTES), tuple(expected)

    def __enter__(self) -> Self:
        environment = {"WANDB_PROGRAM": sys.argv[0], **os.environ}  # what W&B is to name as the run's program
        environment.pop("WANDB_SERVICE", None)  # a parent's wandb-core: what becomes of it is not ours to decide
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        pickle.dump((self._key, self._expected), self._process.stdin)
        self._process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @cached_property
    def address(self) -> WandbAddress:
        """Where it listens, for any process of this machine; waits until it has started."""
        assert self._process.stdout is not None
        return WandbAddress(self._process.stdout.readline().decode().rstrip("\n"), self._key)
