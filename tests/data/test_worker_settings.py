"""How many workers a data set gets, from the times of its first reads."""

import os

import pytest
import torch

from ampsweep.data.batch_reader import TimedRead, num_workers_for

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def timed(monkeypatch):
    """Tells the number of workers for reads of so many seconds, on a machine with so many cores."""

    def timed(read_s, step_s, *, busy=1.0, cores=8, device=CUDA, threads=8):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        reads, now_s = [], 0.0
        for number in range(4):
            length_s = read_s * (10 if number == 0 else 1)
            reads.append(TimedRead(now_s, now_s + length_s, read_s * busy))
            now_s += length_s + step_s
        return num_workers_for(reads, device)

    return timed


def test_reading_that_is_quicker_than_handing_over_gets_none(timed):
    assert timed(0.0005, 0.0001) == 0


@pytest.mark.parametrize(("read_s", "num_workers"), [(0.005, 1), (0.021, 3), (0.5, 7)])
def test_reading_keeps_up_with_the_step(timed, read_s, num_workers):
    assert timed(read_s, 0.01) == num_workers


def test_on_a_cpu_the_training_keeps_its_cores(timed):
    assert timed(0.1, 0.01, device=CPU, threads=5) == 3
    assert timed(0.1, 0.01, device=CPU, threads=8) == 1


def test_readers_that_wait_take_no_core(timed):
    assert timed(0.1, 0.001, busy=0.1, device=CPU) == 8
    assert timed(0.1, 0.1, busy=0.1, cores=1, device=CPU) == 1


@pytest.mark.parametrize(("ranks", "num_workers"), [("2", 3), ("8", 0), ("16", 0)])
def test_ranks_on_one_machine_share_its_cores(timed, monkeypatch, ranks, num_workers):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert timed(0.1, 0.01) == num_workers
    assert timed(0.1, 0.01, busy=0.1) == max(1, 8 // int(ranks))


def test_with_one_core_computing_readers_save_nothing(timed):
    assert timed(0.1, 0.1, cores=1) == 0
