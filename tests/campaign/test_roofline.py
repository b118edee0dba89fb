"""The bound of a step, against numbers made by hand; and how the loops by hand are timed."""

import time
from dataclasses import asdict, replace

import pytest
import torch
from by_hand import recipe as recipe_by_hand
from by_hand import time_steps
from campaign.roofline import Moved, bound, moved_bytes
from devices import needs_cuda

from ampsweep.config.compose import compose_one
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.observe.feeding import resident
from ampsweep.records.sections import MemoryUse, ModeProof
from ampsweep.training.components.built import build_data

H100 = "NVIDIA H100 80GB HBM3"
WIDTH, BATCH, NUM_LAYERS = 4096, 512, 3
WEIGHTS = NUM_LAYERS * (WIDTH * WIDTH + WIDTH)
FLOPS = 2 * BATCH * WIDTH * WIDTH * (3 * NUM_LAYERS - 1)
"""Forward and two gradients a layer, but none for the first layer's input."""
CPU = torch.device("cpu")


@pytest.fixture
def recipe(recorded):
    """A record with the sizes of PyTorch's AMP recipe on an H100, which uses SGD without momentum."""
    run = recorded("arms").runs[0].record

    def recipe(mode, dtype, max_grad_norm=None, **optimizer):
        precision = asdict(PRECISION_MODES[mode])
        trainer = run.config["trainer"] | {"max_grad_norm": max_grad_norm, "grad_accum_steps": 1}
        held = {"parameters": getattr(torch, precision["parameters"]).itemsize * WEIGHTS}
        used = {"name": "sgd", "momentum": 0.0} | optimizer
        return replace(
            run,
            config=run.config | {"precision": precision, "trainer": trainer, "optimizer": used},
            proof=run.proof | ModeProof(flops={dtype: FLOPS}, optimizer_fused=True),
            memory=run.memory | MemoryUse(end_of_forward=held),
            identity=replace(run.identity, device_name=H100),
        )

    return recipe


def test_on_an_h100_eager_amp_is_bounded_below_tf32(recipe):
    record = recipe("amp_fp16", "float16")
    assert moved_bytes(record) == Moved(casts=12 * WEIGHTS, unscale=8 * WEIGHTS, clipping=0, optimizer=16 * WEIGHTS)
    fp32, tf32 = bound(recipe("fp32", "float32")), bound(recipe("tf32", "float32"))
    amp, pure = bound(record), bound(recipe("pure_bf16", "bfloat16"))
    assert (fp32.arithmetic_ms, fp32.moving_ms) == pytest.approx((2.054, 0.180), abs=1e-3)
    assert (tf32.arithmetic_ms, tf32.moving_ms) == pytest.approx((0.278, 0.180), abs=1e-3)
    assert (amp.arithmetic_ms, amp.moving_ms) == pytest.approx((0.139, 0.541), abs=1e-3)
    assert (pure.arithmetic_ms, pure.moving_ms) == pytest.approx((0.139, 0.090), abs=1e-3)
    assert 3.2 < fp32.step_ms / amp.step_ms < 3.4
    assert amp.step_ms > tf32.step_ms


def test_only_a_fused_optimizer_unscales(recipe):
    record = recipe("amp_fp16", "float16")
    record.proof.optimizer_fused = False
    clipped = recipe("amp_fp16", "float16", max_grad_norm=1.0)
    assert moved_bytes(record).optimizer == moved_bytes(clipped).optimizer == 12 * WEIGHTS


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "casts", "unscale", "clipping", "update"),
    [
        ("fp32", 0, 0, 3 * 4, 4 + 2 * 4 + 4 * 4),
        ("amp_bf16", (4 + 2) + (2 + 4), 0, 3 * 4, 4 + 2 * 4 + 4 * 4),
        ("fp8_rowwise", (4 + 1) + (2 + 4), 0, 3 * 4, 4 + 2 * 4 + 4 * 4),
        ("bf16_sr", 0, 0, 3 * 2, 2 + 2 * 2 + 4 * 2),
        ("master_bf16", 0, 0, 3 * 2, 2 + 2 * 4 + 2 + 4 * 4),
        ("master_fp16", 0, 2 * 2, 3 * 2, 2 + 2 * 4 + 2 + 4 * 4),
    ],
)
def test_adamw_moves_each_dtype_that_a_mode_keeps(recipe, mode, casts, unscale, clipping, update):
    """Bytes a parameter: casts there and back, the gradient, the weight and its two moments."""
    record = recipe(mode, "float32" if mode == "fp32" else "bfloat16", max_grad_norm=1.0, name="adamw")
    assert moved_bytes(record) == Moved(*(WEIGHTS * part for part in (casts, unscale, clipping, update)))
    record.config["optimizer"] = {"name": "adamw", "state_dtype": "bfloat16"}
    held = 0 if mode == "bf16_sr" else 2
    assert moved_bytes(record).optimizer == WEIGHTS * (update - 4 * held)


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
