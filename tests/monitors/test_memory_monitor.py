"""Peaks of memory, each under its key or absent."""

import multiprocessing
import subprocess
import sys

import pytest
import torch
from devices import needs_cuda
from torch import nn

from ampsweep.metrics import METRICS
from ampsweep.monitors.memory import AllocatorGrowth, Counted, MemoryMonitor
from ampsweep.monitors.nvml import NvmlDevice
from ampsweep.observe.host_memory import peak_resident_bytes
from ampsweep.observe.step import TracedStep, trace_step

CPU = torch.device("cpu")
MIB, GIB = 2**20, 2**30


def traced_step(device=CPU):
    model = nn.Linear(8, 8, device=device)
    with trace_step(model) as trace:
        model(torch.ones(4, 8, device=device)).sum().backward()
    return trace.result


def test_cpu_peaks_come_from_the_traced_step_and_the_system():
    monitor = MemoryMonitor(CPU)
    monitor.after_warmup()
    traced = traced_step()
    summary = monitor.summary(traced)
    assert summary["memory/peak_allocated_gib"] * GIB == traced.peak_bytes
    assert summary["memory/parameters_gib"] * GIB == 4 * (8 * 8 + 8)
    assert summary["memory/process_gib"] > 0.1
    assert "memory/peak_reserved_gib" not in summary
    assert "memory/peak_allocated_run_gib" not in summary
    assert set(summary) <= set(METRICS)


def test_without_a_traced_step_only_the_process_is_known():
    assert set(MemoryMonitor(CPU).summary()) == {"memory/process_gib"}


def test_on_the_cpu_nobody_watches_an_allocator():
    assert MemoryMonitor(CPU).growth() is None


class Allocator:
    """Has taken some bytes from its device, and counts who asks."""

    num_bytes = num_asked = num_retried = 0

    def read(self):
        self.num_asked += 1
        return Counted(0, 0, self.num_bytes, self.num_retried, 0)


@pytest.mark.parametrize("step", [1, 2, 5, 70, 150])
def test_a_step_that_made_the_allocator_grow_is_suspected(step):
    allocator = Allocator()
    growth, suspects = AllocatorGrowth(allocator.read), []
    for ended in range(1, 200):
        allocator.num_bytes += MIB * (ended == step)
        num_slowed = growth.step_ended()
        suspects += range(ended - num_slowed + 1, ended + 1)
    assert step in suspects
    assert len(suspects) <= 32


def test_an_allocator_at_rest_is_seldom_asked():
    allocator = Allocator()
    growth = AllocatorGrowth(allocator.read)
    assert not any(growth.step_ended() for _ in range(1000))
    assert allocator.num_asked < 40


def test_after_a_growth_each_step_is_looked_at_again():
    allocator = Allocator()
    growth = AllocatorGrowth(allocator.read)
    for _ in range(100):
        growth.step_ended()
    allocator.num_bytes += MIB
    assert growth.look() > 0
    allocator.num_bytes += MIB
    assert growth.step_ended() == 1
    assert growth.step_ended() == 0


def test_a_look_tells_of_the_steps_since_the_last_one():
    allocator = Allocator()
    growth = AllocatorGrowth(allocator.read)
    for _ in range(65):
        growth.step_ended()
    allocator.num_bytes += MIB
    assert [growth.look(), growth.look()] == [2, 0]  # looks came after 1, 3, 7, 15, 31 and 63 steps


def test_what_was_taken_between_steps_makes_none_of_them_slow():
    allocator = Allocator()
    growth = AllocatorGrowth(allocator.read)
    allocator.num_bytes += MIB
    growth.begin()
    assert growth.step_ended() == 0


def test_on_a_full_device_growing_is_no_exception():
    allocator = Allocator()
    growth = AllocatorGrowth(allocator.read)
    for _ in range(5):
        allocator.num_bytes += MIB
        allocator.num_retried += 1
        assert growth.look() == growth.step_ended() == 0
    allocator.num_bytes += MIB
    assert growth.look() > 0


def peak_after_holding(num_bytes, results):
    before = peak_resident_bytes()
    held = bytearray(b"x") * num_bytes
    del held
    results.put((before, peak_resident_bytes()))


def test_the_peak_of_a_process_remembers_what_it_gave_back():
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=peak_after_holding, args=(300 * MIB, results))
    process.start()
    before, after = results.get()
    process.join()
    assert after - before == pytest.approx(300 * MIB, rel=0.3)


def test_the_peak_of_a_process_is_not_that_of_its_parent():
    code = "from ampsweep.observe.host_memory import peak_resident_bytes as p; print(p())"
    held = bytearray(b"x") * (1000 * MIB)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(child.stdout) < 700 * MIB < 1000 * MIB < peak_resident_bytes()  # torch itself takes some hundred
    del held


def test_a_traced_step_that_does_not_add_up_is_refused():
    with pytest.raises(AssertionError):
        TracedStep(
            peak_bytes=2,
            peak={"other": 1},
            end_of_forward={},
            kept={},
            held_bytes=0,
            num_operators=0,
            flops={},
            recomputed_flops={},
            outputs={},
        )


WORKSPACE = 1 << 20


@torch.library.custom_op("ampsweep_tests::with_workspace", mutates_args=())
def with_workspace(x: torch.Tensor) -> torch.Tensor:
    """An operator that allocates for itself."""
    workspace = torch.ones(WORKSPACE, dtype=torch.uint8, device=x.device)
    return x + workspace[0]


with_workspace.register_autograd(lambda context, grad: grad)


def measured_step(monitor, work):
    model = nn.Linear(256, 256, bias=False, device=monitor._device)  # with one, CUDA takes a workspace for the product
    x = torch.ones(64, 256, device=monitor._device)
    with monitor.one_step(), trace_step(model) as trace:
        work(model(x)).sum().backward()
    return monitor.of_step(trace.result)


def test_what_a_kernel_takes_for_itself_has_a_row_of_its_own():
    plain, with_more = (measured_step(MemoryMonitor(CPU), work) for work in (torch.clone, with_workspace))
    assert with_more.peak_bytes == pytest.approx(plain.peak_bytes, abs=4096)
    more = with_more.unattributed_bytes - plain.unattributed_bytes
    assert more == pytest.approx(WORKSPACE, rel=0.2)
    for memory in (plain, with_more):
        assert sum(memory.peak.values()) + memory.unattributed_bytes == memory.allocator_peak_bytes


def test_a_step_that_was_not_measured_has_no_allocator_peak():
    memory = MemoryMonitor(CPU).of_step(traced_step())
    assert memory.as_json().keys() == {"peak_bytes", "peak", "end_of_forward", "kept"}


@needs_cuda
def test_cuda_peaks_of_the_run_and_of_the_steady_steps():
    device = torch.device("cuda")
    torch.cuda.empty_cache()  # `held` would lie in what earlier tests have left, or the next tensor leaves
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    before = torch.empty(2048 * MIB, dtype=torch.uint8, device=device)
    del before
    monitor = MemoryMonitor(device)
    assert "memory/peak_allocated_gib" not in monitor.summary()
    assert monitor.row()["memory/peak_reserved_gib"] < 1, "of what was freed before the run"
    spike = torch.empty(1024 * MIB, dtype=torch.uint8, device=device)
    del spike
    monitor.after_warmup()
    summary = monitor.summary(traced_step(device))
    assert 1 <= summary["memory/peak_allocated_run_gib"] < 2
    assert held.nbytes / GIB <= summary["memory/peak_allocated_gib"] < 1
    assert summary["memory/peak_reserved_gib"] >= summary["memory/peak_allocated_run_gib"]
    assert summary["memory/parameters_gib"] * GIB == 4 * (8 * 8 + 8)
    assert set(summary) <= set(METRICS)


class Statistics:
    """A CUDA device's allocator, as far as the monitor asks it."""

    def __init__(self):
        self.counts = {"num_alloc_retries": 7, "num_ooms": 2}

    def empty_cache(self):
        pass

    def reset_peak_memory_stats(self, device):
        pass

    def memory_stats_as_nested_dict(self, device):
        sizes = {"peak": 3 * GIB, "allocated": 5 * GIB}
        return {"allocated_bytes": {"all": sizes}, "reserved_bytes": {"all": sizes}, **self.counts}


def test_requests_for_which_there_was_no_room_are_counted(monkeypatch):
    allocator = Statistics()
    monkeypatch.setattr(torch, "get_device_module", lambda device: allocator)
    monkeypatch.setattr(NvmlDevice, "open", lambda device: None)
    monitor = MemoryMonitor(torch.device("cuda", 0))
    allocator.counts = {"num_alloc_retries": 8, "num_ooms": 5}
    monitor.after_warmup()
    allocator.counts["num_alloc_retries"] = 12
    summary = monitor.summary()
    assert (summary["memory/num_retries"], summary["memory/num_refused"]) == (4, 3)
    assert set(summary) <= set(METRICS)


@needs_cuda
def test_on_cuda_the_allocator_tells_that_it_grew():
    growth = MemoryMonitor(torch.device("cuda")).growth()
    spike = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
    assert [growth.step_ended(), growth.step_ended()] == [1, 0]
    del spike


@needs_cuda
def test_the_traced_peak_is_the_allocators_but_for_rounding():
    device = torch.device("cuda")
    torch.cuda.empty_cache()  # a cached block may be larger than what is asked for, by up to 1 MiB
    layers = [
        nn.Linear(1024, 1024, bias=False) for _ in range(2)
    ]  # with a bias, CUDA takes a workspace for the product
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(512, 1024, device=device)
    for _ in range(2):
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        with trace_step(model, optimizer) as trace:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    held = x.nbytes + 3 * sum(p.nbytes for p in model.parameters())
    grown = torch.cuda.max_memory_allocated(device) - before
    assert trace.result.peak_bytes - held == pytest.approx(grown, abs=MIB)


@needs_cuda
def test_cuda_peak_of_one_step_leaves_the_runs_peak_alone():
    device = torch.device("cuda")
    monitor = MemoryMonitor(device)
    measured_step(monitor, torch.clone)  # the first matmul of all takes a workspace that stays
    spike = torch.empty(512 * MIB, dtype=torch.uint8, device=device)
    del spike
    plain, with_more = (measured_step(monitor, work) for work in (torch.clone, with_workspace))
    leaked = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    with_a_leak = measured_step(monitor, torch.clone)
    assert with_more.unattributed_bytes - plain.unattributed_bytes == pytest.approx(WORKSPACE, rel=0.5)
    more = with_a_leak.unattributed_bytes - plain.unattributed_bytes
    assert more == pytest.approx(leaked.nbytes, rel=0.1)
    summary = monitor.summary()
    assert summary["memory/peak_allocated_run_gib"] >= 0.5 > plain.allocator_peak_bytes / GIB
    monitor.after_warmup()
    spike = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    del spike
    measured_step(monitor, torch.clone)
    assert 0.25 <= monitor.summary()["memory/peak_allocated_gib"] < 0.5
