"""The training's side of W&B, against a process that the test plays."""

import time
from multiprocessing import Pipe
from threading import Event

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.records import RunRecord
from ampsweep.records.sections import WandbFacts
from ampsweep.tracking.wandb import follower
from ampsweep.tracking.wandb.follower import WandbFollower
from ampsweep.tracking.wandb.process import Answer, WandbWork
from ampsweep.tracking.wandb.send_history import Stopped

NOBODY = 99_999_999
ONLINE = WandbFacts(id="run0123", mode="online", url="there")


class Address:
    """Stands for a W&B process: each task that is begun is a connection for the test."""

    def __init__(self):
        self.theirs, self.has_begun = None, Event()

    def begin(self, *_):
        ours, self.theirs = Pipe()
        self.has_begun.set()
        return WandbWork(ours, pid=NOBODY)


@pytest.fixture
def started(record, tmp_path):
    """A follower that has begun, with its process, its lines for the user, and its stops."""
    address, said, stops = Address(), [], []
    found = WandbFollower(TrackingConfig(project="p"), address, group="g", say=said.append, on_stop=stops.append)
    found.start(record, tmp_path, 0)
    assert record.wandb == WandbFacts(id="run0123", last_step=0, project="p", group="g")
    assert address.has_begun.wait(30)
    return found, address.theirs, said, stops


def test_messages_of_the_process_reach_user_run_and_record(started, record):
    found, theirs, said, stops = started
    for message in ("a line", ONLINE, Stopped(), Answer(WandbFacts(id="run0123", last_step=2))):
        theirs.send(message)
    found.finish(record)
    found.finish(record)
    assert record.wandb == WandbFacts(id="run0123", last_step=2)
    assert (said, stops) == (["a line"], ["a stop on W&B"])


@pytest.mark.parametrize(
    ("facts", "limit_s", "mode"),
    [(None, 0.4, None), (ONLINE, 0.3, "online"), (ONLINE | WandbFacts(error="no connection"), 0.1, "online")],
    ids=["nothing heard", "a server that is there", "a server in trouble"],
)
def test_an_end_waits_no_longer_than_it_may(facts, limit_s, mode, started, record, tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "_END_S", {None: 0.4, "online": 0.3, "offline": 30.0})
    monkeypatch.setattr(follower, "_TROUBLE_S", 0.1)
    killed = []
    monkeypatch.setattr(follower, "kill_family", killed.append)
    found, theirs, said, _ = started
    if facts is not None:
        theirs.send(facts)
        while found._facts != facts:
            time.sleep(0.001)
    began = time.monotonic()
    found.finish(record)
    assert limit_s <= time.monotonic() - began < limit_s + 5
    error = facts.error if facts is not None and facts.error else "it had not taken all of the run 0 s after its end"
    assert (record.wandb.error, record.wandb.mode) == (error, mode)
    assert killed == [NOBODY]
    assert said == [f"W&B: lost ({error}); {follower.SYNC_LATER}"]
    assert theirs.recv() is None, "the process hears of the end"
    assert RunRecord.read(tmp_path).run_id == record.run_id, "the last record was there to be read"


def test_a_run_that_never_began_has_no_process(record):
    WandbFollower(TrackingConfig(), None, group=None, say=pytest.fail, on_stop=pytest.fail).finish(record)
    assert not record.wandb
