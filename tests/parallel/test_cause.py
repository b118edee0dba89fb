"""What ended a run, as it is told to the other ranks and to the record."""

import pytest

from ampsweep.parallel.base import SINGLE, OtherRankError, Parallel, RankFault
from ampsweep.record.outcome import OutOfMemory
from ampsweep.run.cause import cause_of_failure, cause_of_oom, error_of, sentence_of


class Second(Parallel):
    """The second of two ranks, which keeps what it is to tell; `first` is what the other had before."""

    rank, world_size = 1, 2

    def __init__(self, first=None):
        self.first, self.told = first, []

    def cause(self, error, fault):
        self.told.append(fault)
        return self.first or fault


def test_running_out_of_memory_is_told_with_its_facts():
    ranks, oom = Second(), OutOfMemory(phase=None, error="out of memory: 3 GiB asked for")
    fault = cause_of_oom(MemoryError("no room"), oom, ranks)
    assert ranks.told == [fault]
    assert (fault.rank, fault.status, fault.oom, fault.error) == (1, "oom", oom, oom.sentence)
    assert "MemoryError: no room" in fault.traceback
    assert sentence_of(fault, ranks) == f"rank 1: {oom.sentence}"


def test_what_follows_from_another_rank_names_it():
    first, lost = RankFault(rank=0, status="failed", error="ValueError: mine"), RuntimeError("connection closed")
    ranks = Second(first)
    fault = cause_of_failure(lost, ranks)
    assert fault is first
    with pytest.raises(OtherRankError, match=r"^rank 0: ValueError: mine$"):
        raise error_of(fault, lost, ranks)


def test_one_process_raises_its_own_error_and_names_no_rank():
    error = ValueError("mine")
    fault = cause_of_failure(error, SINGLE)
    assert error_of(fault, error, SINGLE) is error
    assert sentence_of(fault, SINGLE) == "mine"
    assert fault.traceback is None
