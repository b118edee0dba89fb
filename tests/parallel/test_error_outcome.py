"""The cause of a run's end, as the other ranks and the record get it."""

import pytest
import torch

from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.base import SINGLE, OtherRankError, Parallel, RankFault
from ampsweep.run.error_outcome import classify_error, error_of, sentence_of

CPU = torch.device("cpu")
NO_LIMIT = MemoryLimit(CPU, None)


class Second(Parallel):
    """The second of two ranks, which keeps the faults that it posts; `first` is what the other posted before."""

    rank, world_size = 1, 2

    def __init__(self, first=None):
        self.first, self.posted = first, []

    def cause(self, error, fault):
        self.posted.append(fault)
        return self.first or fault


def test_running_out_of_memory_is_posted_with_its_facts():
    ranks = Second()
    fault = classify_error(MemoryError("no room"), ranks, CPU, NO_LIMIT)
    assert ranks.posted == [fault]
    assert (fault.rank, fault.status, fault.oom.phase, fault.error) == (1, "oom", "build", fault.oom.sentence)
    assert "MemoryError: no room" in fault.traceback
    assert sentence_of(fault, ranks) == f"rank 1: {fault.oom.sentence}"


def test_an_error_caused_by_another_rank_names_it():
    first, lost = RankFault(rank=0, status="failed", error="ValueError: mine"), RuntimeError("connection closed")
    ranks = Second(first)
    fault = classify_error(lost, ranks, CPU, NO_LIMIT)
    assert fault is first
    with pytest.raises(OtherRankError, match=r"^rank 0: ValueError: mine$"):
        raise error_of(fault, lost, ranks)


def test_one_process_raises_its_own_error_and_names_no_rank():
    error = ValueError("mine")
    fault = classify_error(error, SINGLE, CPU, NO_LIMIT)
    assert error_of(fault, error, SINGLE) is error
    assert sentence_of(fault, SINGLE) == "mine"
    assert fault.traceback is None
