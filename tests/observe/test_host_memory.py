"""Growth of CPU memory, as torch's allocator sees it."""

import os

import torch
from torch.profiler import ProfilerActivity, profile

from ampsweep.observe.host_memory import measure_host_peak

MIB = 2**20


def test_growth_is_the_most_that_was_allocated_at_once():
    held = torch.ones(4 * MIB, dtype=torch.uint8)
    with measure_host_peak() as growth:
        first = torch.ones(2 * MIB, dtype=torch.uint8)
        second = torch.ones(MIB, dtype=torch.uint8)
        del first
        third = torch.ones(MIB, dtype=torch.uint8)
    assert growth.peak_bytes == 3 * MIB
    assert held.nbytes == 4 * second.nbytes == 4 * third.nbytes


def test_where_nothing_is_allocated_nothing_grows():
    with measure_host_peak() as growth:
        pass
    assert growth.peak_bytes == 0


def test_a_profiler_that_runs_already_is_left_alone():
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        with measure_host_peak() as growth:
            torch.ones(3)
        torch.zeros(3)
    assert growth.peak_bytes is None
    assert {"aten::ones", "aten::zeros"} <= {event.key for event in profiled.key_averages()}


def test_the_environment_is_as_before(monkeypatch):
    for level in (None, "3"):
        if level is not None:
            monkeypatch.setenv("KINETO_LOG_LEVEL", level)
        with measure_host_peak():
            pass
        assert os.environ.get("KINETO_LOG_LEVEL") == level
