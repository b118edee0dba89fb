"""What a training records: who it was, and every figure that the device can give, under its name, also on W&B."""

import os
import re
from dataclasses import asdict

import pytest
import torch
from command_line import GPT, MLP, all_runs, only_run
from devices import needs_cuda
from recorded_sweeps import COMMANDS
from wandb_file import read_wandb_file

from ampsweep.metrics import MEASURED, METRICS, STEP
from ampsweep.records.sections import KeptWeights


def test_a_run_leaves_a_complete_record(train, machine):
    lengths = ("trainer.steps=12", "trainer.eval_every=5")
    command = (*MLP, *lengths, "seed=3", "precision=amp_bf16", "output_dir='o[/b]'")
    ended, run = train(*command), only_run("o[/b]")
    assert (ended.code, ended.said) == (0, [])
    for said in ("amp_bf16, mlp_small, seed 3", "status completed", str(run.directory.resolve())):
        assert said in ended.words
    assert f"{run.record.summary['val/loss']:.4f}" in ended.out
    assert "\x1b" not in ended.out
    record = run.record
    assert (record.schema, record.kind, record.status, record.arm) == (1, "measured", "completed", "amp_bf16")
    assert (record.error, record.cut_short, record.prediction) == (None, None, None)
    identity = asdict(record.identity)
    assert re.fullmatch(r"[0-9a-f]{8,}", identity.pop("data_fingerprint"))
    assert identity.pop("device_name") == record.environment["device"]
    assert {f"{key}={value}" for key, value in identity.items()} == {
        *("experiment=train", "precision_mode=amp_bf16", "dtype=bfloat16", "model=mlp_small", "model_size=85002"),
        *("task=classification", "data=digits", "batch_size=64", "grad_accum_steps=1", "seq_len=None", "steps=12"),
        *("optimizer=adamw", "lr=0.001", "compile=False", "channels_last=False", "seed=3", "device=cpu"),
        *("world_size=1", "parallel=single", "global_batch_size=64"),
    }
    assert (record.config["precision"]["mode"], record.config["trainer"]["steps"]) == ("amp_bf16", 12)
    assert {"code_version", "python", "packages", "os", "flags"} <= record.environment.keys()
    assert record.proof.outputs.keys() == {"float32", "bfloat16"}
    (attempt,) = record.attempts
    assert (attempt.from_step, attempt.pid) == (0, os.getpid())
    assert record.started_at <= record.ended_at
    assert not record.wandb
    assert re.fullmatch(r"[0-9a-f]{12}", record.pair_key)
    assert run.directory.name == f"amp_bf16-mlp_small-s3-{record.config_hash[:8]}"
    assert {path.name for path in run.directory.iterdir()} == {"run.json", "history.jsonl", ".hydra", "checkpoints"}
    weights = torch.load(run.directory / "checkpoints/final.pt", weights_only=True)
    assert sum(weight.numel() for weight in weights.values()) == record.identity.model_size
    final = KeptWeights(file="checkpoints/final.pt", step=12, value=record.summary["val/loss"])
    assert (record.weights, record.best.step) == ([final], 12)
    assert not list(machine.iterdir()), "wandb, which is disabled, leaves no file"
    assert list(run.column("train/loss")) == [2, 4, 6, 8, 10, 12]
    for key in ("val/loss", "val/accuracy"):
        assert list(run.column(key)) == [5, 10, 12]
        assert run.history[-1][key] == record.summary[key]

    assert train(*command).code == 0
    assert len(list(run.directory.parents[1].iterdir())) == 2, "of one second, with directories of their own"


OF_AN_ALLOCATOR = {
    *(f"memory/{name}" for name in ("peak_allocated_run_gib", "peak_reserved_gib", "num_retries", "num_refused"))
}
OF_OTHERS = {
    *("perf/launch_ms", "perf/device_lag_ms", "perf/mfu_pct", "memory/largest_batch"),
    *(f"device/{name}" for name in ("memory_used_gib", "power_w", "energy_j", "energy_per_sample_j")),
    *(f"device/{name}" for name in ("temperature_c", "clock_mhz", "throttled_pct", "power_capped_pct")),
    *("perf/communication_ms", "perf/reduced_mib", "memory/peak_allocated_spread_gib"),
}
"""Of a GPU, its driver and its known peak, of a search and of several ranks."""
OF_THE_RUN = {
    *("perf/step_ms_iqr", "perf/step_ms_p95", "instrumentation/watch_pct", "train/clipped_pct"),
    "val/autocast_penalty",
}
"""Not of a row: distributions and shares of all steps, and of an evaluation after the last."""


def expected(arm, *, is_language=False):
    """Keys of the figures that any device gives."""
    keys = METRICS.keys() - OF_AN_ALLOCATOR - OF_OTHERS
    keys -= {"val/accuracy"} if is_language else {"perf/tokens_per_sec"}
    keys -= set() if arm.startswith("amp_") else {"val/autocast_penalty"}
    return keys if arm == "amp_fp16" else {key for key in keys if not key.startswith("amp/")}


def test_on_a_cpu_every_arm_has_every_figure_a_cpu_gives(recorded):
    *runs, unsupported = recorded("offline").runs
    assert (len(runs), unsupported.record.status) == (4, "unsupported")
    for run in runs:
        summary = run.record.summary
        assert summary.keys() == expected(run.record.arm), run.record.arm
        logged = {key for row in run.history for key in row}
        assert logged == summary.keys() - OF_THE_RUN | {STEP}, run.record.arm
        sent = read_wandb_file(run.directory / run.record.wandb.directory)
        assert sent.history == run.history
        assert {key: value for key, value in sent.summary.items() if key in METRICS} == summary
        assert run.contradictions == ()
        memory = run.record.memory
        assert sum(memory.peak.values()) == memory.peak_bytes == 2**30 * summary["memory/peak_allocated_gib"]
        assert memory.peak_bytes + memory.unattributed_bytes == memory.allocator_peak_bytes
        assert (memory.end_of_forward["autocast_weights"] > 0) == run.record.arm.startswith("amp_")
    proof = runs[0].record.proof
    assert (proof.fp32_arithmetic, proof.fp32_bits) == ({"matmul": "exact"}, {"matmul": 23})
    assert (proof.flags["mkldnn_matmul_fp32_precision"], proof.flops.keys()) == ("ieee", {"float32"})


def test_a_language_model_has_those_of_tokens(train):
    more = ("trainer.steps=24", "numerics.watch=true", "trainer.max_grad_norm=1.0", "precision=amp_fp16")
    assert train(*GPT, *more).code == 0
    assert only_run().record.summary.keys() == expected("amp_fp16", is_language=True)


def test_a_run_cut_short_in_its_warmup_has_completed_without_later_figures(train):
    ended = train(*MLP, "trainer.steps=1000", "trainer.max_seconds=0.001", "trainer.log_every=1")
    run = only_run()
    assert (ended.code, run.record.status) == (0, "completed")
    assert re.fullmatch(r"trainer\.max_seconds=0\.001 reached after step \d of 1000", run.record.cut_short)
    assert run.record.cut_short in ended.words
    assert run.history[0]["perf/step_ms"] > 0
    assert not [key for key in run.record.summary if key.startswith(MEASURED) and not key.startswith("memory/")]
    assert {"train/loss", "val/loss"} <= run.record.summary.keys()


EARLY = (*MLP, "trainer.steps=200", "trainer.eval_every=5", "trainer.patience=2", "optimizer.lr=0.03")


def test_a_run_that_stops_early_keeps_its_best_and_final_weights(train):
    assert train(*EARLY).code == 0
    run = only_run()
    record, losses = run.record, run.column("val/loss")
    best = min(losses, key=losses.get)
    assert (record.status, record.stopped_early, record.best.step) == ("completed", True, best)
    assert record.cut_short.startswith("trainer.patience=2 reached by val/loss, best ")
    assert {kept.file: (kept.step, kept.value) for kept in record.weights} == {
        "checkpoints/best.pt": (best, losses[best]),
        "checkpoints/final.pt": (max(losses), losses[max(losses)]),
    }
    assert (record.summary["val/loss"], max(losses)) == (losses[best], best + 10)
    assert record.summary["val/accuracy"] == run.column("val/accuracy")[best]


@pytest.mark.nightly
def test_a_sweep_keeps_weights_if_asked_and_changes_no_figure_by_it(train):
    for keep, files in (("auto", set()), ("both", {"best.pt", "final.pt"})):
        assert train("-m", *EARLY, f"trainer.keep_weights={keep}", f"output_dir={keep}").code == 0
        folder = only_run(keep).directory / "checkpoints"
        assert {path.name for path in (folder.iterdir() if folder.exists() else ())} == files
    plain, kept = only_run("auto").record, only_run("both").record
    assert (plain.pair_key, plain.config_hash) == (kept.pair_key, kept.config_hash)
    assert (plain.memory, plain.best) == (kept.memory, kept.best)
    for key in ("val/loss", "train/loss", "memory/peak_allocated_gib"):
        assert plain.summary[key] == kept.summary[key]


@needs_cuda
def test_on_cuda_every_arm_has_what_torch_measures(train):
    arguments = [word for word in COMMANDS["offline"] if not word.startswith(("device=", "precision="))]
    on_gpu = ("device=cuda:0", "trainer.warmup_seconds=0")  # 24 steps end within 2 s
    assert train(*arguments, "precision=fp32,amp_bf16,amp_fp16,pure_bf16", *on_gpu).code == 0
    for run in all_runs():
        summary, memory = run.record.summary, run.record.memory
        of_a_cpu = {"device/busy_cores", "device/utilization_pct", "memory/process_gib"}  # a container shows fewer
        assert summary.keys() >= expected(run.record.arm) - of_a_cpu | OF_AN_ALLOCATOR
        assert (run.contradictions, run.record.proof.optimizer_fused) == ((), True)
        assert memory.unattributed_bytes >= 0
        peaks = [summary[f"memory/peak_{name}_gib"] for name in ("allocated", "allocated_run", "reserved")]
        assert peaks == sorted(peaks)
        assert 0 < summary.get("perf/mfu_pct", 1) <= 100
