"""A memory limit: what is over it raises, in whatever phase, and what is within it computes as ever."""

import gc

import pytest
import torch
import torch.nn.functional as F
from amp_loops import amp_step
from devices import needs_cuda
from torch import nn

from ampsweep.observe.memory_limit import MemoryLimit, MemoryLimitError, memory_bytes, why_no_limit
from ampsweep.observe.step import trace_step

CPU = torch.device("cpu")
GIB = 2**30
FLOAT = 4


def limited_to(num_bytes):
    return MemoryLimit(CPU, num_bytes / GIB)


def take(num_floats):
    return torch.empty(num_floats)


def test_exactly_the_limit_may_be_in_use_and_no_byte_more():
    with limited_to(100 * FLOAT):
        kept = take(60)
        more = take(40)
        with pytest.raises(MemoryLimitError) as raised:
            take(1)
        assert (raised.value.requested_bytes, raised.value.in_use_bytes) == (FLOAT, 100 * FLOAT)
        del more, raised  # the traceback holds what was too much
        take(40)
    assert len(kept) == 60


def test_whoever_handles_a_lack_of_memory_handles_this_one():
    with limited_to(FLOAT), pytest.raises(torch.OutOfMemoryError, match="limited to 4"):
        take(2)


def test_views_and_what_is_written_in_place_take_nothing():
    with limited_to(100 * FLOAT) as limit:
        whole = take(100)
        whole.view(10, 10).t()[3:].mul_(2)
        whole.detach().zero_()
    assert limit.peak_bytes == 100 * FLOAT


def test_what_was_there_before_counts_from_its_first_use():
    before = take(90)
    with limited_to(100 * FLOAT):
        take(100)
        with pytest.raises(MemoryLimitError):
            before + 1


def test_it_goes_on_counting_when_it_is_entered_again():
    limit = limited_to(100 * FLOAT)
    with limit:
        first = take(60)
    unseen = take(60)
    with limit, pytest.raises(MemoryLimitError):
        take(60)
    del first
    with limit:
        take(60)
    assert len(unseen) == 60


class Training:
    """Three steps of a small model and an evaluation, as a training takes them."""

    def __init__(self, limit, batch=16, scaler=False):
        torch.manual_seed(0)
        with limit:
            self.model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
            self.scaler = torch.amp.GradScaler("cpu", enabled=scaler)
            self.x, self.y = torch.randn(batch, 32), torch.randn(batch, 8)
        self.limit, self.scaling = limit, scaler

    def run(self):
        with self.limit:
            for _ in range(3):
                self.step()
            with torch.no_grad():
                return F.mse_loss(self.model(self.x), self.y).item()

    def step(self):
        dtype = torch.float16 if self.scaling else None
        amp_step(self.model, self.optimizer, self.scaler, [(self.x, self.y)], dtype=dtype)


@pytest.mark.parametrize("scaler", [False, True])
def test_a_limit_that_is_not_reached_changes_no_value(scaler):
    limit = limited_to(2**30)
    assert Training(limit, scaler=scaler).run() == Training(MemoryLimit(CPU, None), scaler=scaler).run()


@pytest.mark.parametrize("scaler", [False, True])
def test_a_training_needs_its_peak_and_no_byte_more(scaler):
    limit = limited_to(2**30)
    Training(limit, scaler=scaler).run()
    gc.collect()
    Training(limited_to(limit.peak_bytes), scaler=scaler).run()
    with pytest.raises(MemoryLimitError):
        Training(limited_to(limit.peak_bytes - 1), scaler=scaler).run()


def test_its_peak_is_that_of_a_traced_step():
    limit = limited_to(2**30)
    training = Training(limit)
    training.run()
    with trace_step(training.model, training.optimizer) as trace:
        training.step()
    assert trace.result.peak_bytes == limit.peak_bytes


def test_a_step_can_be_traced_under_it():
    limit = limited_to(2**30)
    training = Training(limit)
    with limit, trace_step(training.model, training.optimizer) as trace:
        training.step()
    assert trace.result.peak_bytes == limit.peak_bytes


def test_only_a_watched_device_is_slowed():
    assert limited_to(GIB).slows
    assert not MemoryLimit(CPU, None).slows
    assert MemoryLimit(CPU, None).bytes is None


def test_without_a_limit_nothing_is_limited():
    with MemoryLimit(CPU, None) as limit:
        take(1000)
    assert limit.peak_bytes is None


def test_what_cannot_be_limited_is_refused_with_a_reason():
    assert why_no_limit(CPU, 0.1, compiles=False) is None
    assert "compiled code" in why_no_limit(CPU, 0.1, compiles=True)
    assert why_no_limit(CPU, 1e6, compiles=False).startswith("cpu itself has ")
    assert why_no_limit(torch.device("mps"), 0.1, compiles=False).startswith("the memory of mps cannot be limited")


@pytest.mark.parametrize(
    ("used_otherwise", "left"),
    [(0.5 * GIB, 79.5 * GIB), (30 * GIB, 79 * GIB)],  # a context; other processes, which may be gone by then
)
def test_a_cuda_context_is_no_memory_for_a_run(used_otherwise, left, monkeypatch):
    reserved = 2 * GIB
    free = 80 * GIB - used_otherwise - reserved
    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    device = torch.device("cuda", 1)
    assert memory_bytes(device, None) == left
    assert (memory_bytes(device, 16), memory_bytes(device, 80)) == (16 * GIB, left)
    assert set(asked) == {device}


@needs_cuda
def test_a_gpu_is_limited_by_its_allocator_while_inside():
    device = torch.device("cuda", 0)
    torch.cuda.empty_cache()
    limit = MemoryLimit(device, 0.25)
    assert not limit.slows
    with limit, pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**28, device=device)
    assert torch.empty(2**28, device=device).numel() == 2**28
    assert "itself has" in why_no_limit(device, 1e6, compiles=True)
    assert why_no_limit(device, 0.25, compiles=True) is None
