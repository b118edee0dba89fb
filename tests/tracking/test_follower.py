"""The training's side of W&B, against a process that does as it is told here."""

import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.wandb import follower
from ampsweep.tracking.wandb.follow import Stopped
from ampsweep.tracking.wandb.follower import WandbFollower
from ampsweep.tracking.wandb.process import Answer, WandbWork

NOBODY = 99_999_999
ONLINE = WandbFacts(id="run0123", mode="online", url="there")


class Address:
    """Stands for a W&B process: each task that is begun is a connection for the test."""

    def __init__(self) -> None:
        self.theirs: Connection[Any, Any] | None = None
        self.has_begun = Event()

    def begin(self, *_: object) -> WandbWork:
        ours, self.theirs = Pipe()
        self.has_begun.set()
        return WandbWork(ours, NOBODY)


@pytest.fixture
def address() -> Address:
    return Address()


def started(address: Address, record: RunRecord, directory: Path, said: list[str], stops: list[str]) -> WandbFollower:
    found = WandbFollower(TrackingConfig(project="p"), address, group="g", say=said.append, on_stop=stops.append)
    found.start(record, directory, 0)
    assert record.wandb == WandbFacts(id="run0123", last_step=0, project="p", group="g")
    assert address.has_begun.wait(30)
    return found


def test_news_of_the_process_reach_whom_they_concern(address: Address, record: RunRecord, tmp_path: Path) -> None:
    said: list[str] = []
    stops: list[str] = []
    found = started(address, record, tmp_path, said, stops)
    assert address.theirs is not None
    for message in ("a line", ONLINE, Stopped(), Answer(WandbFacts(id="run0123", last_step=2))):
        address.theirs.send(message)
    found.finish(record)
    found.finish(record)
    assert record.wandb == WandbFacts(id="run0123", last_step=2)
    assert (said, stops) == (["a line"], ["a stop on W&B"])


@pytest.mark.parametrize(
    ("facts", "limit_s"),
    [(None, 0.4), (ONLINE, 0.3), (ONLINE | WandbFacts(error="no connection"), 0.1)],
    ids=["nothing heard", "a server that is there", "a server in trouble"],
)
def test_an_end_waits_no_longer_than_it_may(
    facts: WandbFacts | None,
    limit_s: float,
    address: Address,
    record: RunRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "_END_S", {None: 0.4, "online": 0.3, "offline": 30.0})
    monkeypatch.setattr(follower, "_TROUBLE_S", 0.1)
    said: list[str] = []
    found = started(address, record, tmp_path, said, [])
    assert address.theirs is not None
    if facts is not None:
        address.theirs.send(facts)
        time.sleep(0.2)
    began = time.monotonic()
    found.finish(record)
    assert limit_s <= time.monotonic() - began < limit_s + 5
    error = (
        "no connection" if facts is not None and facts.error else "it had not taken all of the run 0 s after its end"
    )
    assert record.wandb.error == error
    assert said == [f"W&B: lost ({error}); {follower.SYNC_LATER}"]
    assert address.theirs.recv() is None, "the process has been told"
    assert RunRecord.read(tmp_path).run_id == record.run_id, "the last record was there to be read"


def test_a_run_that_never_began_has_no_process(address: Address, record: RunRecord) -> None:
    WandbFollower(TrackingConfig(), address, group=None, say=print, on_stop=print).finish(record)
    assert not address.has_begun.is_set()
    assert not record.wandb
