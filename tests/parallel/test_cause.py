"""What ended a run, as it is told to the other ranks and to the record."""

import pytest
import torch

from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.base import SINGLE, OtherRankError, Parallel, RankFault
from ampsweep.run.cause import cause_of_end, error_of, sentence_of

CPU = torch.device("cpu")
NO_LIMIT = MemoryLimit(CPU, None)


class Second(Parallel):
    """The second of two ranks, which keeps what it is to tell; `first` is what the other had before."""

    rank, world_size = 1, 2

    def __init__(self, first=None):
        self.first, self.told = first, []

    def cause(self, error, fault):
        self.told.append(fault)
        return self.first or fault


def test_running_out_of_memory_is_told_with_its_facts():
    ranks = Second()
    fault = cause_of_end(MemoryError("no room"), ranks, CPU, NO_LIMIT)
    assert ranks.told == [fault]
    assert (fault.rank, fault.status, fault.oom.phase, fault.error) == (1, "oom", "build", fault.oom.sentence)
    assert "MemoryError: no room" in fault.traceback
    assert sentence_of(fault, ranks) == f"rank 1: {fault.oom.sentence}"


def test_what_follows_from_another_rank_names_it():
    first, lost = RankFault(rank=0, status="failed", error="ValueError: mine"), RuntimeError("connection closed")
    ranks = Second(first)
    fault = cause_of_end(lost, ranks, CPU, NO_LIMIT)
    assert fault is first
    with pytest.raises(OtherRankError, match=r"^rank 0: ValueError: mine$"):
        raise error_of(fault, lost, ranks)


def test_one_process_raises_its_own_error_and_names_no_rank():
    error = ValueError("mine")
    fault = cause_of_end(error, SINGLE, CPU, NO_LIMIT)
    assert error_of(fault, error, SINGLE) is error
    assert sentence_of(fault, SINGLE) == "mine"
    assert fault.traceback is None
