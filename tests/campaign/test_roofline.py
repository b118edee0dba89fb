"""The bound of a step, against numbers made by hand."""

from dataclasses import asdict, replace

import pytest
import torch
from campaign.roofline import Moved, bound, moved_bytes

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.record.parts import MemoryUse, ModeProof

H100 = "NVIDIA H100 80GB HBM3"
WIDTH, BATCH, NUM_LAYERS = 4096, 512, 3
WEIGHTS = NUM_LAYERS * (WIDTH * WIDTH + WIDTH)
FLOPS = 2 * BATCH * WIDTH * WIDTH * (3 * NUM_LAYERS - 1)
"""Forward and two gradients a layer, but none for the first layer's input."""


def recipe_records(results):
    return {record.arm: record for _, record in results.compared["recipe"].records}


@pytest.fixture
def recipe(results):
    """The record of a real run, with the sizes of the recipe at its own size."""
    run = recipe_records(results)["fp32"]

    def recipe(mode, dtype, **trainer):
        precision = asdict(PRECISION_MODES[mode])
        config = run.config | {"precision": precision, "trainer": run.config["trainer"] | trainer}
        held = {"parameters": getattr(torch, precision["parameters"]).itemsize * WEIGHTS}
        return replace(
            run,
            config=config,
            proof=run.proof | ModeProof(flops={dtype: FLOPS}),
            memory=run.memory | MemoryUse(end_of_forward=held),
            identity=replace(run.identity, device_name=H100),
        )

    return recipe


@pytest.mark.slow
def test_the_recipes_step_under_amp_moves_1800_megabytes(recipe):
    record = recipe("amp_fp16", "float16")
    assert sum(record.proof.flops.values()) / 1e9 == pytest.approx(137.4, abs=0.05)
    moved = moved_bytes(record)
    assert moved == Moved(casts=12 * WEIGHTS, unscale=8 * WEIGHTS, clipping=0, optimizer=16 * WEIGHTS)
    assert moved.total / 1e9 == pytest.approx(1.81, abs=0.005)


@pytest.mark.slow
def test_an_optimizer_that_unscales_writes_gradients_back(recipe):
    scaled = {"mode": "amp_fp16", "dtype": "float16"}
    assert moved_bytes(recipe(**scaled, max_grad_norm=1.0)).optimizer == 12 * WEIGHTS
    by_loop = recipe(**scaled)
    by_loop.proof.optimizer_fused = False
    assert moved_bytes(by_loop).optimizer == 12 * WEIGHTS


@pytest.mark.slow
def test_on_an_h100_eager_amp_is_bounded_below_tf32(recipe):
    fp32 = bound(recipe("fp32", "float32"))
    tf32 = bound(recipe("tf32", "float32"))
    amp = bound(recipe("amp_fp16", "float16"))
    pure = bound(recipe("pure_bf16", "bfloat16"))
    assert (fp32.arithmetic_ms, fp32.moving_ms) == pytest.approx((2.054, 0.180), abs=1e-3)
    assert (tf32.arithmetic_ms, tf32.moving_ms) == pytest.approx((0.278, 0.180), abs=1e-3)
    assert (amp.arithmetic_ms, amp.moving_ms) == pytest.approx((0.139, 0.541), abs=1e-3)
    assert (pure.arithmetic_ms, pure.moving_ms) == pytest.approx((0.139, 0.090), abs=1e-3)
    assert 3.2 < fp32.step_ms / amp.step_ms < 3.4
    assert amp.step_ms > tf32.step_ms


@pytest.mark.slow
def test_clipping_and_adamw_pass_over_the_parameters_too(recipe):
    record = recipe("fp32", "float32", max_grad_norm=1.0)
    record.config["optimizer"] = {"name": "adamw"}
    assert moved_bytes(record) == Moved(casts=0, unscale=0, clipping=12 * WEIGHTS, optimizer=28 * WEIGHTS)
    record.config["optimizer"] = {"name": "sgd", "momentum": 0.9}
    assert moved_bytes(record).optimizer == 20 * WEIGHTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "casts", "unscale", "clipping", "update"),
    [
        ("amp_bf16", (4 + 2) + (2 + 4), 0, 3 * 4, 4 + 2 * 4 + 4 * 4),
        ("fp8_rowwise", (4 + 1) + (2 + 4), 0, 3 * 4, 4 + 2 * 4 + 4 * 4),
        ("bf16_sr", 0, 0, 3 * 2, 2 + 2 * 2 + 4 * 2),
        ("master_bf16", 0, 0, 3 * 2, 2 + 2 * 4 + 2 + 4 * 4),
        ("master_fp16", 0, 2 * 2, 3 * 2, 2 + 2 * 4 + 2 + 4 * 4),
    ],
)
def test_adamw_moves_what_a_mode_keeps_in_its_dtypes(recipe, mode, casts, unscale, clipping, update):
    """Bytes a parameter: casts there and back, the gradient, the weight and its two moments."""
    record = recipe(mode, "bfloat16", max_grad_norm=1.0)
    record.config["optimizer"] = {"name": "adamw"}
    assert moved_bytes(record) == Moved(*(WEIGHTS * one for one in (casts, unscale, clipping, update)))
    record.config["optimizer"] = {"name": "adamw", "state_dtype": "bfloat16"}
    held = 0 if mode == "bf16_sr" else 2
    assert moved_bytes(record).optimizer == WEIGHTS * (update - 4 * held)


@pytest.mark.slow
def test_real_records_hold_what_the_formula_takes(results):
    """The tiny recipe: three layers of 32, batch 8."""
    weights = 3 * (32 * 32 + 32)
    fp32, amp = (recipe_records(results)[arm] for arm in ("fp32", "amp_bf16"))
    for record, dtype in ((fp32, "float32"), (amp, "bfloat16")):
        assert record.proof.flops == {dtype: 2 * 8 * 32 * 32 * 8}
    assert moved_bytes(fp32) == Moved(casts=0, unscale=0, clipping=0, optimizer=12 * weights)
    assert moved_bytes(amp) == Moved(casts=12 * weights, unscale=0, clipping=0, optimizer=12 * weights)


@pytest.mark.slow
def test_where_the_device_is_not_known_there_is_no_bound(results):
    (workload,) = results.workloads("recipe")
    assert [arm.name for arm in workload.arms] == ["fp32", "tf32", "amp_bf16", "amp_fp16", "pure_bf16"]
    assert {(arm.bound, arm.share_pct) for arm in workload.arms} == {(None, None)}
