"""Each rank is watched from its first moment on."""

import threading

from torch.distributed import HashStore

from ampsweep.parallel import peers
from ampsweep.parallel.peers import Peers


def watched_by_rank_0(store):
    """Watch rank 1 from rank 0 until a fault is told, or for five seconds; returns the faults."""
    told, is_told = [], threading.Event()

    def tell(fault):
        told.append(fault)
        is_told.set()

    watch = Peers(store, 0, 2, tell, end=told.append)
    is_told.wait(5)
    watch.close()
    return told


def test_a_rank_is_seen_as_soon_as_it_has_joined():
    store = HashStore()
    watch = Peers(store, 1, 2, tell=print, end=print)
    seen = store.check(["beat/1"])
    watch.close()
    assert seen


def test_one_that_stops_after_its_first_beat_is_missed(monkeypatch):
    monkeypatch.setattr(peers, "_SILENT_S", 1.0)
    store = HashStore()
    Peers(store, 1, 2, tell=print, end=print).close()
    [fault] = watched_by_rank_0(store)
    assert fault.sentence == "rank 1: it stopped answering 1 s ago"


def test_one_that_never_beats_is_missed_too(monkeypatch):
    monkeypatch.setattr(peers, "_SILENT_S", 1.0)
    [fault] = watched_by_rank_0(HashStore())
    assert (fault.rank, fault.status) == (1, "failed")
    assert fault.error.startswith("it stopped answering")
