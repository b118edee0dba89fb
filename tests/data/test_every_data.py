"""Training batches of all data are a function of (seed, index), and on a GPU may be copied ahead of their step."""

from contextlib import contextmanager

import pytest
import torch
from devices import needs_cuda
from every_data import OF_THE_SUITE, SYNTHETIC, same

from ampsweep.data.batch_reader import AHEAD_BYTES, CopiedAhead, copies_ahead

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NUM_VALUES = AHEAD_BYTES // 4


@pytest.fixture(params=OF_THE_SUITE.values(), ids=OF_THE_SUITE.keys())
def make(request, tmp_path):
    def made(**changes):
        sizes = {"num_batches": 5} if request.param in SYNTHETIC.values() else {}
        return request.param(tmp_path, **({"batch_size": 4, "seed": 0, "device": CPU} | sizes | changes))

    return made


def test_batches_are_a_function_of_seed_and_index(make):
    data, other = make(), make()
    indices = [*range(20), 998, 999]
    forwards = [data.train_batch(index) for index in indices]
    backwards = [other.train_batch(index) for index in reversed(indices)][::-1]  # from 999 on, as a resumed run
    assert all(map(same, forwards, backwards))
    other_seed = make(seed=1).train_batch(0)
    assert not any(same(other_seed, batch) for batch in forwards[:2]), "seed and index do not mix"
    assert not any(torch.equal(forwards[0][0], batch[0]) for batch in forwards[1:5])


def test_validation_is_the_same_every_time_and_for_every_seed(make):
    before, data = torch.get_rng_state(), make()
    first = list(data.val_batches())
    data.train_batch(3)
    assert torch.equal(torch.get_rng_state(), before), "the model's random numbers are left alone"
    assert len(first) > 0
    for again in (data.val_batches(), make(seed=7).val_batches()):
        assert all(same(*batches) for batches in zip(first, again, strict=True))


def test_sizes_are_those_promised(make):
    data = make(batch_size=3, seed=1)
    assert make().fingerprint == data.fingerprint == f"{int(data.fingerprint, 16):016x}"
    assert data.batch_size == 3
    assert {len(tensor) for index in range(4) for tensor in data.train_batch(index)} == {3}
    assert all(len(inputs) == len(targets) <= 3 for inputs, targets in data.val_batches())
    inputs, _ = data.train_batch(0)
    assert data.tokens_per_batch == (None if inputs.is_floating_point() else inputs.numel())


@contextmanager
def no_wait_for_the_gpu():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_a_batch_reaches_the_gpu_without_a_wait(make):
    data, reference = make(device=torch.device("cuda")), make()
    data.train_batch(0)
    with no_wait_for_the_gpu():
        batch = data.train_batch(1)
    assert all(tensor.is_cuda for tensor in batch)
    assert same([tensor.cpu() for tensor in batch], reference.train_batch(1))


class Reads:
    """Batches of two items; remembers the indices it was asked for."""

    def __init__(self, num_values=NUM_VALUES):
        self.num_values, self.indices = num_values, []

    def __call__(self, index):
        self.indices.append(index)
        return torch.full((2, self.num_values), float(index)), {"name": f"batch {index}"}


def test_on_the_host_a_batch_is_read_on_request():
    reads = Reads()
    batches = CopiedAhead(reads, 2, CPU)
    assert [batches(index)[0][0, 0].item() for index in (0, 1, 5)] == [0, 1, 5]
    assert reads.indices == [0, 1, 5]
    # On a GPU the size of an item decides.
    assert copies_ahead(torch.zeros(2, NUM_VALUES), 2)
    assert copies_ahead({"x": torch.zeros(3, NUM_VALUES - 1), "y": torch.zeros(3)}, 3)
    assert not copies_ahead(torch.zeros(2, NUM_VALUES - 1), 2)


@needs_cuda
def test_a_gpu_gets_each_batch_once_in_any_order():
    reads, small = Reads(), Reads(NUM_VALUES - 1)
    batches, small_batches = CopiedAhead(reads, 2, GPU), CopiedAhead(small, 2, GPU)
    for index in (0, 1, 2, 7, 8, 3):
        batch, facts = batches(index)
        assert (batch.is_cuda, facts) == (True, {"name": f"batch {index}"})
        assert torch.equal(batch.cpu(), torch.full((2, NUM_VALUES), float(index)))
        small_batches(index)
    assert reads.indices == [0, 1, 2, 3, 7, 8, 9, 3, 4], "the next batch each time"
    assert small.indices == [0, 1, 2, 7, 8, 3], "small items are not copied ahead"


@needs_cuda
def test_copying_ahead_makes_the_host_wait_for_nothing():
    size = 2 * 4 * 2**18
    batches = CopiedAhead(Reads(2**18), 2, GPU)
    batches(0)
    torch.cuda.synchronize(GPU)
    torch.cuda.reset_peak_memory_stats(GPU)
    before = torch.cuda.memory_allocated(GPU)
    with no_wait_for_the_gpu():
        for index in range(1, 50):
            batch = batches(index)
            torch.cuda._sleep(10**6)
            del batch
    assert torch.cuda.max_memory_allocated(GPU) - before <= size, "one batch is ahead, however far the host is"


@needs_cuda
def test_a_copy_waits_for_the_former_user_of_its_memory():
    batches = CopiedAhead(Reads(2**20), 2, GPU)
    for index in range(20):
        (batch, _) = batches(index)
        busy = torch.ones(2**11, 2**11, device=GPU)
        for _ in range(20):
            busy = busy @ busy  # the copy of the next batch runs beside it
        sums = batch.sum() + 0 * busy.nan_to_num(0, 0, 0).sum()
        del batch, busy
        assert sums.item() == index * 2 * 2**20
