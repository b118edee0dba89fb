"""How the loops by hand are timed."""

import time

import torch
from by_hand import recipe as recipe_by_hand
from by_hand import time_steps
from devices import needs_cuda

from ampsweep.config.compose import compose_one
from ampsweep.observe.feeding import resident
from ampsweep.training.components.built import build_data

CPU = torch.device("cpu")


def test_loops_by_hand_are_timed_after_warm_up():
    taken = []

    def step():
        time.sleep(0.05 if len(taken) < 2 else 0.002)
        taken.append(time.perf_counter())

    timed = time_steps(step, num_steps=12, num_warmup_steps=2, device=CPU)
    assert len(taken) == 12
    assert timed["step_ms"] >= 2.0
    assert 2.0 <= timed["wall_ms"] < 50.0
    taken[:], began = [0.0] * 2, time.perf_counter()
    time_steps(step, num_steps=5, num_warmup_steps=2, warmup_seconds=0.1, device=CPU)
    assert taken[-4] - began >= 0.1, "warm-up lasts for a time too"


def test_the_loop_by_hand_holds_as_much_data(monkeypatch):
    sizes = ["model.hidden_size=16", "data.in_features=16", "data.out_features=16"]
    config = compose_one(["model=mlp_recipe", *sizes, "optimizer=sgd"])
    held = sum(tensor.nbytes for tensor in resident(build_data(config, CPU)))
    drawn, randn = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, **where: drawn.append(randn(*shape, **where)) or drawn[-1])
    recipe_by_hand(config, CPU)
    assert sum(tensor.nbytes for tensor in drawn) == held


@needs_cuda
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
