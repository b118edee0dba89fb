"""The cause of a run's end, as the other ranks and the record get it."""

from types import SimpleNamespace

import pytest
import torch

from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.parallel.base import SINGLE, OtherRankError, RankFault
from ampsweep.run.error_outcome import classify_error, error_of

CPU = torch.device("cpu")


def second_rank(cause):
    return SimpleNamespace(rank=1, world_size=2, cause=cause)


def classified(error, ranks):
    return classify_error(error, ranks, CPU, MemoryLimit(CPU, None))


def test_running_out_of_memory_is_posted_with_its_facts():
    ranks = second_rank(cause=lambda error, fault: fault)
    fault = classified(MemoryError("no room"), ranks)
    assert (fault.rank, fault.status, fault.oom.phase, fault.error) == (1, "oom", "build", fault.oom.sentence)
    assert "MemoryError: no room" in fault.traceback
    assert fault.sentence == f"rank 1: {fault.oom.sentence}"


def test_an_error_caused_by_another_rank_names_it():
    first, lost = RankFault(rank=0, status="failed", error="ValueError: mine"), RuntimeError("connection closed")
    ranks = second_rank(cause=lambda error, fault: first)
    assert classified(lost, ranks) is first
    with pytest.raises(OtherRankError, match=r"^rank 0: ValueError: mine$"):
        raise error_of(first, lost, ranks)


def test_one_process_raises_its_own_error_and_names_no_rank():
    error = ValueError("mine")
    fault = classified(error, SINGLE)
    assert error_of(fault, error, SINGLE) is error
    assert (fault.sentence, fault.traceback) == ("mine", None)
