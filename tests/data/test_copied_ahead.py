"""On a GPU the next batch is copied while the step computes; elsewhere nothing is copied ahead."""

import pytest
import torch
from devices import needs_cuda

from ampsweep.data.batch_reader import AHEAD_BYTES, CopiedAhead, copies_ahead

CPU = torch.device("cpu")
NUM_VALUES = AHEAD_BYTES // 4


class Reads:
    """Batches of two items that count how often they are read."""

    def __init__(self, num_values=NUM_VALUES):
        self.num_values, self.indices = num_values, []

    def __call__(self, index):
        self.indices.append(index)
        return torch.full((2, self.num_values), float(index)), {"name": f"batch {index}"}


def test_on_the_host_a_batch_is_read_when_it_is_asked_for():
    reads = Reads()
    batches = CopiedAhead(reads, 2, CPU)
    assert [batches(index)[0][0, 0].item() for index in (0, 1, 5)] == [0, 1, 5]
    assert reads.indices == [0, 1, 5]


def test_the_size_of_an_item_decides():
    assert copies_ahead(torch.zeros(2, NUM_VALUES), 2)
    assert copies_ahead({"x": torch.zeros(3, NUM_VALUES - 1), "y": torch.zeros(3)}, 3)
    assert not copies_ahead(torch.zeros(2, NUM_VALUES - 1), 2)


@pytest.fixture
def gpu():
    return torch.device("cuda", 0)


@needs_cuda
def test_a_gpu_gets_each_batch_once_whatever_the_order(gpu):
    reads = Reads()
    batches = CopiedAhead(reads, 2, gpu)
    for index in (0, 1, 2, 7, 8, 3):
        batch, facts = batches(index)
        assert batch.is_cuda
        assert facts == {"name": f"batch {index}"}
        assert torch.equal(batch.cpu(), torch.full((2, NUM_VALUES), float(index)))
    assert reads.indices == [0, 1, 2, 3, 7, 8, 9, 3, 4], "the next one each time"


@needs_cuda
def test_small_items_are_not_copied_ahead(gpu):
    reads = Reads(NUM_VALUES - 1)
    batches = CopiedAhead(reads, 2, gpu)
    for index in range(3):
        batches(index)
    assert reads.indices == [0, 1, 2]


@needs_cuda
def test_a_copy_ahead_makes_nobody_wait(gpu):
    batches = CopiedAhead(Reads(), 2, gpu)
    batches(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [batches(index) for index in (1, 2, 3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [batch[0][1, -1].item() for batch in found] == [1, 2, 3]


@needs_cuda
def test_a_copy_waits_for_what_used_its_memory_before(gpu):
    batches = CopiedAhead(Reads(2**20), 2, gpu)
    for index in range(20):
        (batch, _) = batches(index)
        busy = torch.ones(2**11, 2**11, device=gpu)
        for _ in range(20):
            busy = busy @ busy  # the copy of the next batch runs beside it
        sums = batch.sum() + 0 * busy.nan_to_num(0, 0, 0).sum()
        del batch, busy
        assert sums.item() == index * 2 * 2**20


@needs_cuda
def test_one_batch_is_ahead_however_far_the_host_is(gpu):
    batches, size = CopiedAhead(Reads(2**18), 2, gpu), 2 * 4 * 2**18
    batches(0)
    torch.cuda.synchronize(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_allocated(gpu)
    for index in range(1, 50):
        batch = batches(index)
        torch.cuda._sleep(10**6)
        del batch
    assert torch.cuda.max_memory_allocated(gpu) - before <= size, "beside the one that was ahead already"
