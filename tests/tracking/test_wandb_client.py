"""The training's side of W&B, against a W&B process that does as it is told here."""

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.wandb.process import WandbAddress, WandbClient
from ampsweep.tracking.wandb.process_messages import Done, Finish, Open, Opened, Start, Started, Stopped


class Process:
    """Stands for a W&B process with one client."""

    def __init__(self, listener: "Listener[Any, Any]") -> None:
        self.address = WandbAddress(str(listener.address), b"key", pid=99_999_999)
        self.connection: Connection[Any, Any] | None = None
        self.heard: list[object] = []
        self.has_begun, self.has_ended = Event(), Event()
        self._listener = listener
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        assert self.connection is not None
        self.connection.send(message)

    def _serve(self) -> None:
        with self._listener.accept() as self.connection:
            try:
                while not (self.heard and isinstance(self.heard[-1], Finish)):
                    self.heard.append(self.connection.recv())
                    if isinstance(self.heard[-1], Open):
                        self.send(Opened("online", "W&B: online", {"project": "p"}))
                    elif isinstance(self.heard[-1], Start):
                        self.has_begun.set()
                    elif isinstance(self.heard[-1], Finish):
                        self.send("a last word")
                        self.send(Done(WandbFacts(id="run0123", last_step=2)))
            except EOFError:
                pass
        self.has_ended.set()


@pytest.fixture
def process() -> Iterator[Process]:
    with Listener(authkey=b"key") as listener:
        yield Process(listener)


def test_what_the_process_says_reaches_whom_it_concerns(process: Process, record: RunRecord, tmp_path: Path) -> None:
    said: list[str] = []
    reasons: list[str] = []
    stopped = Event()

    def on_stop(reason: str) -> None:
        reasons.append(reason)
        stopped.set()

    client = WandbClient(TrackingConfig(), process.address, group="g", say=said.append, on_stop=on_stop)
    assert client.line == "W&B: online"
    began = time.monotonic()
    client.start(record, tmp_path, 0)
    assert time.monotonic() - began < 5, "half a second: W&B is slow to begin"
    assert record.wandb == WandbFacts(id="run0123", mode="online", last_step=0, project="p")
    assert process.has_begun.wait(30)
    process.send(Started(WandbFacts(id="run0123", url="too late")))
    process.send(Stopped())
    assert stopped.wait(30)
    assert reasons == ["a stop on W&B"]
    client.finish(record)
    client.finish(record)
    assert record.wandb == WandbFacts(id="run0123", last_step=2)
    assert said == ["a last word"]
    assert process.has_ended.wait(30)
    assert [type(message) for message in process.heard] == [Open, Start, Finish]


def test_a_run_that_never_began_leaves_the_process_free(process: Process, record: RunRecord) -> None:
    client = WandbClient(TrackingConfig(), process.address, group=None, say=print, on_stop=lambda reason: None)
    client.finish(record)
    assert process.has_ended.wait(30)
    assert not record.wandb
