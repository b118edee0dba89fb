"""Precision as a user sees it: loss scales, what is learned, emulated and compiled modes, figures to be trusted."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest
import torch
from command_line import GPT, MLP, all_runs, only_run, only_sweep
from own_models import Digits
from wandb_file import read_wandb_file

from ampsweep.report.compare import compare_directories

INIT_SCALE = 1099511627776  # 2**40


def test_overflow_skips_steps_until_the_scale_fits_and_then_trains(train):
    ended = train(
        *("model=mlp_small", "tracking.mode=offline", "predict.with_runs=false", "precision=amp_fp16"),
        *(f"precision.init_scale={INIT_SCALE}", "precision.growth_interval=25", "trainer.steps=150"),
        *("trainer.log_every=1", "scheduler=constant", "scheduler.num_warmup_steps=9", "optimizer.lr=1e-3"),
    )
    run = only_run()
    history, summary = run.history, run.record.summary
    assert (ended.code, run.record.status) == (0, "completed")
    assert [row["step"] for row in history] == list(range(1, 151))
    num_first = sum(row["amp/applied_steps"] == 0 for row in history)
    assert num_first > 10
    assert history[num_first]["amp/scale"] == INIT_SCALE * 0.5**num_first
    losses = list(run.column("train/loss").values())
    assert all(map(math.isfinite, losses)), "it is the gradients that overflow"
    assert statistics.mean(losses[-10:]) < 0.3 * statistics.mean(losses[:num_first])

    tracked = read_wandb_file(run.directory / run.record.wandb.directory)
    assert tracked.history == [pytest.approx(row, rel=0, abs=0, nan_ok=True) for row in history]
    assert tracked.config["arm"] == "amp_fp16+init_scale=1099511627776.0+growth_interval=25"
    for key in ("amp/scale", "amp/growth_tracker", "amp/skipped_steps", "amp/applied_steps"):
        assert tracked.summary[key] == summary[key] == history[-1][key]


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.nightly), "amp_bf16", "amp_fp16"])
def test_digits_are_learned_in_every_precision(precision, train):
    arguments = ("trainer.steps=null", "trainer.epochs=10", "optimizer.lr=2e-3", f"precision={precision}")
    assert train(*MLP, *arguments).code == 0
    record = only_run().record
    assert record.identity.steps == 224
    assert record.summary["val/accuracy"] >= 0.9
    assert record.summary["val/loss"] < 0.4


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16"])
def test_text_is_learned_beyond_the_frequency_of_letters(precision, train):
    # A model that knows nothing has a loss of 5.5, one that knows how often each byte comes of 3.3 (its entropy).
    lengths = ("trainer.steps=200", "trainer.log_every=50", "trainer.eval_every=50", "data.num_val_batches=8")
    assert train(*GPT, *lengths, "optimizer.lr=1e-2", f"precision={precision}").code == 0
    losses = list(only_run().column("val/loss").values())
    assert losses[-1] < min(3.25, losses[0])  # on the way it may rise: rounding and text differ


OF_PROCESS = ("perf/", "memory/", "device/", "instrumentation/")


def test_an_emulated_arm_is_compared_by_its_loss_only(train):
    pytest.importorskip("torchao")
    arms = ("precision=amp_bf16,fp8_tensorwise", "report.baseline=amp_bf16", "predict.with_runs=true")
    assert train("-m", *MLP, "model.hidden_size=32", "device=cpu", *arms, "trainer.steps=6").code == 0
    other, run = all_runs()
    record = run.record
    assert (other.record.status, record.status, record.arm) == ("completed", "completed", "fp8_tensorwise")
    assert not [key for row in (record.summary, *run.history) for key in row if key.startswith(OF_PROCESS)]
    assert record.absent["perf/step_ms"] == "the mode is emulated on this device"
    assert (run.contradictions, record.prediction.error_pct) == ((), 0)
    assert [layer.name for layer in record.proof.float8.kept] == ["head"]
    (workload,) = json.loads((only_sweep() / "comparison.json").read_text())["workloads"]
    assert [(arm["speedup"], arm["memory_saved_bytes"]) for arm in workload["arms"][1:]] == [(None, None)]
    text = (only_sweep() / "comparison.md").read_text()
    assert "not head (the output layer)" in text
    assert "emulated, hence without speed and memory: " in text


COMPILED = ("-m", "trainer.compile=true", *MLP, "trainer.steps=6", "device=cpu", "precision=amp_bf16")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:`torch.jit")  # of what torch imports to compile
def test_compiled_runs_of_a_sweep_are_recorded_as_such(train, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert train(*COMPILED, "seed=0,1", "predict.with_runs=true").code == 0
    first, second = (run.record for run in all_runs())
    assert second.compilation.seconds < first.compilation.seconds
    assert [run.contradictions for run in all_runs()] == [(), ()]
    for record in (first, second):
        assert (record.status, record.proof.traced) == ("completed", "compiled")
        assert record.prediction.peak_bytes > 0  # of the eager step, so that there is nothing to compare it with
        assert (record.prediction.measured_bytes, record.prediction.error_pct) == (None, None)
        assert record.summary["memory/peak_allocated_gib"] * 2**30 == record.memory.peak_bytes


def test_a_machine_without_a_compiler_is_an_unsupported_outcome(train, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ended, record = train(*COMPILED, "seed=0"), only_run().record
    assert (ended.code, record.status) == (0, "unsupported")
    assert record.error.startswith("trainer.compile=true needs a C++ compiler, and there is none")
    assert "Traceback" not in ended.out + ended.err


class Tampering(Digits):
    """Lets float32 matmuls lose bits, as some libraries do when they are imported; keeps what it computed alive."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def happens(self, step):
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"

    def forward(self, images):
        self.kept.append(super().forward(images))
        return self.kept[-1]


TAMPERED = "mkldnn_matmul_fp32_precision is bf16 during training, although precision.tf32=false"


def test_a_run_that_was_not_its_mode_or_leaks_is_reported(train):
    """It is in no comparison."""
    assert train(*MLP, "trainer.steps=6", "precision=amp_bf16").code == 0
    tampered = ("model=custom", f"model._target_={__name__}.Tampering", "data=digits", "data.batch_size=64")
    ended = train(*tampered, "trainer.steps=6", "tracking=disabled")
    assert f"disproved: {TAMPERED}" in ended.out
    assert sorted(run.contradictions for run in all_runs()) == [(), (TAMPERED,)]
    assert re.search(r"warning +a step left 2\.\d+ KiB behind", ended.out)
    assert all_runs()[1].record.memory.kept["activations"] >= 64 * 10 * 4
    comparison = compare_directories([Path("outputs")]).comparison
    fp32 = next(arm for workload in comparison.workloads for arm in workload.arms if arm.arm == "fp32")
    assert fp32.statuses == {"disproved": 1}
    assert (fp32.step_ms, fp32.peak_memory_bytes, fp32.val_loss) == (None, None, None)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16", "the prediction ran the model in this process"
