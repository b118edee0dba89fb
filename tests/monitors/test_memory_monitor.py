"""Peaks of memory, each under its key or absent."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from devices import needs_cuda
from torch import nn

from ampsweep.metrics import METRICS
from ampsweep.monitors.memory import AllocatorGrowth, Counted, MemoryMonitor
from ampsweep.monitors.nvml import NvmlDevice
from ampsweep.observe.host_memory import peak_resident_bytes
from ampsweep.observe.step import trace_step

CPU = torch.device("cpu")
MIB, GIB = 2**20, 2**30


@torch.library.custom_op("ampsweep_tests::with_workspace", mutates_args=())
def with_workspace(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(MIB, dtype=torch.uint8)[0]


with_workspace.register_autograd(lambda context, grad: grad)


def traced_step(monitor, work=torch.clone):
    model, x = nn.Linear(256, 256, bias=False), torch.ones(64, 256)
    with monitor.one_step(), trace_step(model) as trace:
        work(model(x)).sum().backward()
    return trace.result


def test_the_workspace_of_a_kernel_is_unattributed():
    monitor = MemoryMonitor(CPU)
    assert 0.1 < monitor.summary()["memory/process_gib"] < 100
    plain, with_more = (monitor.of_step(traced_step(monitor, work)) for work in (torch.clone, with_workspace))
    assert with_more.peak_bytes == pytest.approx(plain.peak_bytes, abs=4096)
    assert with_more.unattributed_bytes - plain.unattributed_bytes == pytest.approx(MIB, rel=0.2)
    for memory in (plain, with_more):
        assert sum(memory.peak.values()) + memory.unattributed_bytes == memory.allocator_peak_bytes
        assert monitor.row(memory)["memory/parameters_gib"] * GIB == 4 * 256 * 256


class Growth(AllocatorGrowth):
    """A watch of an allocator that counts the bytes it has taken, and how often it is read."""

    num_bytes = num_read = num_retried = 0

    def __init__(self):
        super().__init__(self.read)

    def read(self):
        self.num_read += 1
        return Counted(0, 0, self.num_bytes, self.num_retried, 0)


@pytest.mark.parametrize("step", [1, 5, 150])
def test_a_step_that_made_the_allocator_grow_is_suspected(step):
    growth, suspects = Growth(), []
    for ended in range(1, 200):
        growth.num_bytes += MIB * (ended == step)
        num_slowed = growth.step_ended()
        suspects += range(ended - num_slowed + 1, ended + 1)
    assert step in suspects
    assert len(suspects) <= 32


def test_an_allocator_at_rest_is_seldom_looked_at_and_a_full_one_may_grow():
    growth = Growth()
    growth.num_bytes += MIB
    growth.begin()
    assert [growth.step_ended() for _ in range(65)] == [0] * 65, "memory taken before the steps makes none slow"
    growth.num_bytes += MIB
    assert [growth.look(), growth.look()] == [2, 0]  # looks came after 1, 3, 7, 15, 31 and 63 steps
    growth.num_bytes += MIB
    assert (growth.step_ended(), growth.step_ended()) == (1, 0), "after a growth each step is looked at again"
    assert not any(growth.step_ended() for _ in range(1000))
    assert growth.num_read < 50
    for _ in range(5):
        growth.num_bytes += MIB
        growth.num_retried += 1
        assert growth.look() == growth.step_ended() == 0
    growth.num_bytes += MIB
    assert growth.look() > 0


@pytest.mark.nightly
def test_the_peak_of_a_process_is_its_own_with_freed_memory():
    look = "from ampsweep.observe.host_memory import peak_resident_bytes as peak; before = peak()"
    child = f"{look}; held = bytearray(b'x') * (300 * 2**20); del held; print(before, peak())"
    held = bytearray(b"x") * (1000 * MIB)
    before, after = map(int, subprocess.check_output([sys.executable, "-c", child]).split())
    assert after - before == pytest.approx(300 * MIB, rel=0.3)
    assert before < 700 * MIB < len(held) < peak_resident_bytes()  # torch itself takes some hundred


def test_peaks_of_run_steady_steps_and_single_steps_are_apart(monkeypatch):
    device, counts = torch.device("cuda", 0), {"num_alloc_retries": 7, "num_ooms": 2}
    allocator = SimpleNamespace(peak=3 * GIB, empty_cache=lambda: None)
    allocator.reset_peak_memory_stats = lambda _: vars(allocator).update(peak=GIB)
    allocator.memory_stats_as_nested_dict = lambda _: {
        "allocated_bytes": {"all": {"peak": allocator.peak}},
        "reserved_bytes": {"all": {"peak": 2 * allocator.peak, "allocated": 9 * GIB}},
        **counts,
    }
    monkeypatch.setattr(torch, "get_device_module", lambda device: allocator)
    monkeypatch.setattr(NvmlDevice, "open", lambda device: None)
    monitor = MemoryMonitor(device)
    allocator.peak, counts["num_alloc_retries"], counts["num_ooms"] = 7 * GIB, 8, 5
    assert monitor.summary()["memory/peak_allocated_run_gib"] == 7
    assert "memory/peak_allocated_gib" not in monitor.summary(), "no step came after warm-up"
    monitor.after_warmup()
    allocator.peak, counts["num_alloc_retries"] = 5 * GIB, 12
    with monitor.one_step():
        allocator.peak = 4 * GIB
    memory = monitor.of_step(traced_step(MemoryMonitor(CPU)))
    assert memory.allocator_peak_bytes == 4 * GIB
    assert memory.unattributed_bytes == 4 * GIB - memory.peak_bytes
    keys = ("peak_allocated_run_gib", "peak_reserved_gib", "peak_allocated_gib", "num_retries", "num_refused")
    assert monitor.summary() == dict(zip((f"memory/{key}" for key in keys), (7, 14, 5, 4, 3), strict=True))
    assert set(monitor.summary()) <= set(METRICS)
    resumed = MemoryMonitor(device)
    resumed.go_on(monitor.peaks())
    resumed.after_warmup()
    assert resumed.row() == monitor.row()


@needs_cuda
def test_the_traced_peak_is_the_allocators_but_for_rounding():
    torch.cuda.empty_cache()  # a cached block may be larger than the request, by up to 1 MiB
    layers = [nn.Linear(1024, 1024, bias=False) for _ in range(2)]  # with a bias, the product takes a workspace
    model, x = nn.Sequential(layers[0], nn.ReLU(), layers[1]).cuda(), torch.randn(512, 1024, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with trace_step(model, optimizer) as trace:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    held = x.nbytes + 3 * sum(parameter.nbytes for parameter in model.parameters())
    grown = torch.cuda.max_memory_allocated() - before
    assert trace.result.peak_bytes - held == pytest.approx(grown, abs=MIB)
