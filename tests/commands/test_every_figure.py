"""Every figure that the device can give is in the record, the history and W&B, under its name, for every arm."""

import pytest
import torch
from command_line import GPT, MLP, all_runs, only_run, only_sweep
from recorded_sweeps import COMMANDS
from wandb_file import read_wandb_file

from ampsweep.metrics import MEASURED, METRICS, STEP

OF_A_DISTRIBUTION = {"perf/step_ms_iqr", "perf/step_ms_p95"}
"""A row has too few steps for them."""
OF_AN_ALLOCATOR = {
    *(f"memory/{name}" for name in ("peak_allocated_run_gib", "peak_reserved_gib", "num_retries", "num_refused"))
}
OF_A_QUEUE = {"perf/launch_ms", "perf/device_lag_ms"}
OF_A_DRIVER = {
    *(f"device/{name}" for name in ("memory_used_gib", "power_w", "energy_j", "energy_per_sample_j")),
    *(f"device/{name}" for name in ("temperature_c", "clock_mhz", "throttled_pct", "power_capped_pct")),
}
OF_A_PEAK = {"perf/mfu_pct"}
OF_A_SEARCH = {"memory/largest_batch"}
OF_RANKS = {"perf/communication_ms", "perf/reduced_mib", "memory/peak_allocated_spread_gib"}
OF_THE_END = {"val/autocast_penalty"}
"""Of an evaluation after the last row, under autocast or without it."""
OF_ALL_STEPS = {"instrumentation/watch_pct", "train/clipped_pct"}
"""Shares of the run's steps."""


def expected(arm, *, is_language=False):
    """Keys of the figures that any device gives."""
    keys = METRICS.keys() - OF_AN_ALLOCATOR - OF_A_QUEUE - OF_A_DRIVER - OF_A_PEAK - OF_A_SEARCH - OF_RANKS
    keys -= {"val/accuracy"} if is_language else {"perf/tokens_per_sec"}
    keys -= set() if arm.startswith("amp_") else OF_THE_END
    return keys if arm == "amp_fp16" else {key for key in keys if not key.startswith("amp/")}


def test_on_a_cpu_every_arm_has_every_figure_a_cpu_gives(recorded):
    *runs, unsupported = recorded("offline").runs
    assert unsupported.record.status == "unsupported"
    assert len(runs) == 4
    for run in runs:
        summary = run.record.summary
        assert summary.keys() == expected(run.record.arm), run.record.arm
        logged = {key for row in run.history for key in row}
        assert logged == summary.keys() - OF_A_DISTRIBUTION - OF_THE_END - OF_ALL_STEPS | {STEP}, run.record.arm
        sent = read_wandb_file(run.directory / run.record.wandb.directory)
        assert sent.history == run.history
        assert {key: value for key, value in sent.summary.items() if key in METRICS} == summary


def test_a_language_model_has_those_of_tokens(train):
    more = ("trainer.steps=24", "numerics.watch=true", "trainer.max_grad_norm=1.0", "precision=amp_fp16")
    assert train(*GPT, *more).code == 0
    assert only_run().record.summary.keys() == expected("amp_fp16", is_language=True)


def test_memory_by_category_follows_from_the_sizes(recorded):
    hidden, classes, pixels, batch = 32, 10, 64, 8
    bytes_of = {"fp32": (4, 0), "amp_bf16": (4, 2), "amp_fp16": (4, 2), "pure_bf16": (2, 0)}
    weights = [pixels * hidden, hidden * hidden, hidden * classes]
    num_parameters = sum(weights) + 2 * hidden + classes
    for run in recorded("offline").runs[:4]:
        of_parameter, of_copy = bytes_of[run.record.arm]
        of_activation = of_copy or of_parameter
        memory, summary = run.record.memory, run.record.summary
        parameters = of_parameter * num_parameters
        assert memory.peak["parameters"] == memory.end_of_forward["parameters"] == parameters
        assert memory.peak["optimizer_state"] == 2 * parameters + 6 * 4  # AdamW counts the steps of each tensor
        # The first layer's input needs no gradient, so that its weight is not kept.
        assert memory.end_of_forward["autocast_weights"] == of_copy * sum(weights[1:])
        copy_of_input = 0 if of_activation == 4 else 2 * pixels
        activations = batch * (2 * hidden * of_activation + 4 * classes + copy_of_input)
        assert memory.end_of_forward["activations"] == pytest.approx(activations, abs=256)
        assert sum(memory.peak.values()) == memory.peak_bytes == 2**30 * summary["memory/peak_allocated_gib"]
        assert memory.peak_bytes + memory.unattributed_bytes == memory.allocator_peak_bytes


def test_a_run_that_ends_in_its_warmup_has_no_later_figures(train):
    assert train(*MLP, "trainer.steps=1000", "trainer.max_seconds=0.001", "trainer.log_every=1").code == 0
    run = only_run()
    assert run.history[0]["perf/step_ms"] > 0
    found = {key for key in run.record.summary if key.startswith(MEASURED) and not key.startswith("memory/")}
    assert found == set()
    assert {"train/loss", "val/loss"} <= run.record.summary.keys()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_every_arm_has_what_torch_measures(train):
    arguments = [word for word in COMMANDS["offline"] if not word.startswith(("device=", "precision="))]
    modes = "precision=fp32,amp_bf16,amp_fp16,pure_bf16"
    assert train(*arguments, modes, "device=cuda:0", "trainer.warmup_seconds=0").code == 0  # 24 steps end within 2 s
    assert train(*GPT, "precision=amp_fp16", "trainer.steps=24", "output_dir=gpt", "device=cuda:0").code == 0
    for run in all_runs(only_sweep()):
        summary, memory = run.record.summary, run.record.memory
        of_a_cpu = {"device/busy_cores", "device/utilization_pct", "memory/process_gib"}  # a container shows fewer
        assert summary.keys() >= expected(run.record.arm) - of_a_cpu | OF_AN_ALLOCATOR
        assert run.contradictions == ()
        assert run.record.proof.optimizer_fused is True
        assert memory.unattributed_bytes >= 0
        assert summary["memory/peak_allocated_gib"] <= summary["memory/peak_allocated_run_gib"]
        assert summary["memory/peak_allocated_run_gib"] <= summary["memory/peak_reserved_gib"]
        assert 0 < summary.get("perf/mfu_pct", 1) <= 100
