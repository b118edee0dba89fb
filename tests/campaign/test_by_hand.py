"""How the loops by hand are timed."""

import time

import pytest
import torch
from by_hand import recipe, time_steps

from ampsweep.config.compose import compose_one
from ampsweep.observe.feeding import resident
from ampsweep.training.components.built import build_data

CPU = torch.device("cpu")


def test_steps_after_warm_up_are_timed():
    taken = []

    def step():
        time.sleep(0.05 if len(taken) < 2 else 0.002)
        taken.append(1)

    timed = time_steps(step, num_steps=12, num_warmup_steps=2, device=CPU)
    assert len(taken) == 12
    assert timed["step_ms"] >= 2.0
    assert 2.0 <= timed["wall_ms"] < 50.0
    assert timed.keys() == {"step_ms", "wall_ms"}, "a CPU's allocator counts nothing"


def test_warm_up_lasts_for_a_time_too():
    taken = []

    def step():
        time.sleep(0.002)
        taken.append(time.perf_counter())

    began = time.perf_counter()
    time_steps(step, num_steps=5, num_warmup_steps=2, warmup_seconds=0.1, device=CPU)
    assert len(taken) > 5
    assert taken[-4] - began >= 0.1


def test_as_many_bytes_are_resident_as_in_the_suite(monkeypatch):
    config = compose_one(
        ["model=mlp_recipe", "model.hidden_size=16", "data.in_features=16", "data.out_features=16", "optimizer=sgd"]
    )
    held = sum(tensor.nbytes for tensor in resident(build_data(config, CPU)))
    drawn, randn = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, **where: drawn.append(randn(*shape, **where)) or drawn[-1])
    recipe(config, CPU)
    assert sum(tensor.nbytes for tensor in drawn) == held


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_time_and_peak_are_the_devices_after_warm_up():
    device = torch.device("cuda", 0)
    held = torch.cuda.memory_allocated(device)
    taken = []

    def step():
        side = 4096 if taken else 8192
        taken.append(1)
        torch.randn(side, side, device=device).matmul(torch.randn(side, side, device=device))

    timed = time_steps(step, num_steps=11, num_warmup_steps=1, device=device)
    assert 3 * 4 * 4096**2 <= timed["peak_bytes"] - held < 3 * 4 * 8192**2
    assert 0.5 * timed["step_ms"] < timed["wall_ms"] < 2 * timed["step_ms"]
