"""Each rank is watched from its first moment on, and its faults reach all others."""

import threading

import pytest
from torch.distributed import HashStore

from ampsweep.parallel import rank_heartbeat
from ampsweep.parallel.base import RankFault
from ampsweep.parallel.rank_heartbeat import RankHeartbeat


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    for name, seconds in {"_BEAT_S": 0.05, "_SILENT_S": 0.6, "_LEFT_S": 0.3}.items():
        monkeypatch.setattr(rank_heartbeat, name, seconds)


class Watch:
    """A rank's watch, and the faults that it reports."""

    def __init__(self, store, rank):
        self.reported, self.has_reported = [], threading.Event()
        self.peers = RankHeartbeat(store, rank, 2, self._report, self._report)

    def _report(self, fault):
        self.reported.append(fault)
        self.has_reported.set()
        self.peers._has_noticed.set()  # as a main thread that ends the run; else the process would be ended

    def fault(self):
        self.has_reported.wait(5)
        self.peers.close()
        return self.reported[0]


@pytest.mark.parametrize("watcher", [0, 1])
def test_a_rank_that_stops_after_its_first_beat_is_missed(watcher):
    store = HashStore()
    gone = Watch(store, 1 - watcher)
    assert store.check([f"beat/{1 - watcher}"]), "it is seen as soon as it has joined"
    gone.peers.close()
    sentence = Watch(store, watcher).fault().sentence
    assert sentence in [f"rank {1 - watcher}: it stopped answering {seconds} s ago" for seconds in (0, 1)]


def test_a_rank_that_never_beats_is_missed_too():
    fault = Watch(HashStore(), 0).fault()
    assert (fault.rank, fault.status, fault.is_guess) == (1, "failed", False)


def test_the_first_fault_of_all_ranks_is_the_one():
    store = HashStore()
    first, second = Watch(store, 0), Watch(store, 1)
    threading.Event().wait(0.9)
    assert first.reported == second.reported == [], "each hears the other"
    own = RankFault(rank=1, status="oom", error="no memory", traceback="where")
    assert second.peers.cause(own, may_follow=False) == own
    assert first.fault() == own
    later = RankFault(rank=0, status="failed", error="connection closed by peer")
    assert first.peers.cause(later, may_follow=True) == own
    second.peers.close()


def test_a_lost_rank_is_guessed_by_the_ranks_that_notice():
    store = HashStore()
    gone, left = Watch(store, 1), Watch(store, 0)
    gone.peers.close()
    threading.Event().wait(0.2)
    found = left.peers.cause(RankFault(rank=0, status="failed", error="connection reset"), may_follow=True)
    left.peers.close()
    assert (found.rank, found.is_guess) in ((1, True), (1, False)), "unless it was missed first"
