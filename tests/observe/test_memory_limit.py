"""Growth of CPU memory as torch's allocator sees it, and a memory limit, which changes no value."""

import gc
import os
from contextlib import nullcontext

import pytest
import torch
from amp_loops import amp_step
from devices import needs_cuda
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.observe.memory_limit import MemoryLimit, MemoryLimitError, memory_bytes, why_no_limit
from ampsweep.observe.step import trace_step

CPU = torch.device("cpu")
MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize("level", [None, "3"])
def test_growth_is_the_most_that_was_allocated_at_once(level, monkeypatch):
    if level is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", level)
    held = torch.ones(4 * MIB, dtype=torch.uint8)
    with measure_host_peak() as growth:
        first, second = (torch.ones(size * MIB, dtype=torch.uint8) for size in (2, 1))
        del first
        third = torch.ones(MIB, dtype=torch.uint8)
    assert growth.peak_bytes == 3 * MIB
    assert held.nbytes == 4 * second.nbytes == 4 * third.nbytes
    assert os.environ.get("KINETO_LOG_LEVEL") == level, "the environment is restored"


def test_a_profiler_that_runs_already_is_left_alone():
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        with measure_host_peak() as growth:
            torch.ones(3)
        torch.zeros(3)
    assert growth.peak_bytes is None
    assert {"aten::ones", "aten::zeros"} <= {event.key for event in profiled.key_averages()}


def limited_to(num_bytes):
    return MemoryLimit(CPU, num_bytes / GIB)


def test_exactly_the_limit_may_be_in_use_and_no_byte_more():
    before, limit = torch.empty(90), limited_to(400)
    with limit:
        kept, more = torch.empty(60), torch.empty(40)
        kept.view(10, 6).t()[3:].mul_(2)
        kept.detach().zero_()
        assert limit.peak_bytes == 400, "views and writing in place take nothing"
        with pytest.raises(torch.OutOfMemoryError, match="limited to 400") as raised:
            torch.empty(1)
        assert isinstance(raised.value, MemoryLimitError)
        assert (raised.value.requested_bytes, raised.value.in_use_bytes) == (4, 400)
        del more, raised  # the traceback holds what was too much
        torch.empty(40)
    torch.empty(60)
    with limit, pytest.raises(MemoryLimitError):  # entered again, it goes on counting
        torch.empty(60)
    del kept
    with limit:
        torch.empty(60)
        with pytest.raises(MemoryLimitError):
            before + 1  # counts from its first use


class Training:
    def __init__(self, limit, scaler=False):
        torch.manual_seed(0)
        with limit:
            self.model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
            self.scaler = torch.amp.GradScaler("cpu", enabled=scaler)
            self.batch = torch.randn(16, 32), torch.randn(16, 8)
        self.limit, self.dtype = limit, torch.float16 if scaler else None

    def run(self):
        with self.limit:
            return [self.step() for _ in range(4)]

    def step(self):
        ((loss,), _) = amp_step(self.model, self.optimizer, self.scaler, [self.batch], dtype=self.dtype)
        return loss.item()


@pytest.mark.parametrize("scaler", [False, True])
def test_a_training_needs_its_peak_and_no_byte_more(scaler):
    without, limit = MemoryLimit(CPU, None), limited_to(2**30)
    expected = Training(without, scaler).run()
    assert Training(limit, scaler).run() == expected, "it changes no value"
    gc.collect()
    Training(limited_to(limit.peak_bytes), scaler).run()
    with pytest.raises(MemoryLimitError):
        Training(limited_to(limit.peak_bytes - 1), scaler).run()
    assert limit.slows
    assert (without.slows, without.bytes, without.peak_bytes) == (False, None, None)


@pytest.mark.parametrize("is_inside", [False, True])
def test_its_peak_is_that_of_a_traced_step(is_inside):
    limit = limited_to(2**30)
    training = Training(limit)
    if not is_inside:
        training.run()
    with limit if is_inside else nullcontext(), trace_step(training.model, training.optimizer) as trace:
        training.step()
    assert trace.result.peak_bytes == limit.peak_bytes


def test_what_cannot_be_limited_is_refused_with_a_reason():
    assert why_no_limit(CPU, 0.1, compiles=False) is None
    assert "compiled code" in why_no_limit(CPU, 0.1, compiles=True)
    assert why_no_limit(CPU, 1e6, compiles=False).startswith("cpu itself has ")
    assert why_no_limit(torch.device("mps"), 0.1, compiles=False).startswith("the memory of mps cannot be limited")


@pytest.mark.parametrize(("used_otherwise", "left"), [(0.5 * GIB, 79.5 * GIB), (30 * GIB, 79 * GIB)])
def test_a_cuda_context_is_no_memory_for_a_run(used_otherwise, left, monkeypatch):
    """A context takes less than 1 GiB; the rest is of other processes, which may have ended by then."""
    second, reserved = torch.device("cuda", 1), 2 * GIB
    info = {second: (80 * GIB - used_otherwise - reserved, 80 * GIB)}
    monkeypatch.setattr(torch.cuda, "mem_get_info", info.__getitem__)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    assert [memory_bytes(second, limit) for limit in (None, 16, 80)] == [left, 16 * GIB, left]


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
