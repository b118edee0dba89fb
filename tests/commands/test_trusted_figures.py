"""A record says whether its figures can be trusted, and a comparison trusts no others."""

import re
from pathlib import Path

import pytest
import torch
from command_line import MLP, all_runs, only_run
from own_models import Digits

from ampsweep.report.compare import compare_directories


class Tampering(Digits):
    """Lets float32 matmuls lose bits, as some libraries do when they are imported."""

    def happens(self, step: int) -> None:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"


TAMPERED = "mkldnn_matmul_fp32_precision is bf16 during training, although precision.tf32=false"


def test_a_record_holds_the_proof_of_its_mode(train):
    assert train(*MLP, "trainer.steps=6").code == 0
    run = only_run()
    proof = run.record.proof
    assert proof.fp32_arithmetic == {"matmul": "exact"}
    assert proof.fp32_bits == {"matmul": 23}
    assert proof.flags["mkldnn_matmul_fp32_precision"] == "ieee"
    assert proof.flops.keys() == {"float32"}
    assert run.contradictions == ()


def test_an_arm_multiplies_as_it_says_or_is_unsupported(train):
    assert train("-m", *MLP, "trainer.steps=6", "precision.fp32_matmul=highest,medium").code == 0
    found = {run.record.arm: run for run in all_runs()}
    assert found.keys() == {"fp32", "fp32+fp32_matmul=medium"}
    assert found["fp32"].record.proof.fp32_bits == {"matmul": 23}
    medium = found["fp32+fp32_matmul=medium"]
    if medium.record.status == "completed":
        assert medium.record.proof.fp32_bits == {"matmul": 7}
        assert medium.contradictions == ()
    else:
        assert medium.record.status == "unsupported"
        assert medium.record.error.startswith("fp32_matmul=medium would round ")


def test_a_setting_of_matmuls_that_there_is_not_is_refused(train):
    ended = train(*MLP, "precision.fp32_matmul=bf16x3")
    assert ended.code == 2
    assert "precision.fp32_matmul=bf16x3: allowed are highest, high, medium" in ended.err


def test_parameters_in_16_bit_promise_nothing_of_float32(train):
    assert train(*MLP, "trainer.steps=6", "precision=pure_bf16").code == 0
    run = only_run()
    assert run.record.proof.fp32_arithmetic is None
    assert run.contradictions == ()


@pytest.mark.slow
def test_a_run_that_was_not_its_mode_is_in_no_comparison(train):
    assert train(*MLP, "trainer.steps=6", "precision=amp_bf16").code == 0
    tampered = ("model=custom", "model._target_=test_trusted_figures.Tampering", "data=digits", "task=classification")
    assert f"disproved: {TAMPERED}" in train(*tampered, "trainer.steps=6", "tracking=disabled").out
    assert sorted(run.contradictions for run in all_runs()) == [(), (TAMPERED,)]
    comparison = compare_directories([Path("outputs")]).comparison
    fp32 = next(arm for workload in comparison.workloads for arm in workload.arms if arm.arm == "fp32")
    assert fp32.statuses == {"disproved": 1}
    assert (fp32.step_ms, fp32.peak_memory_bytes, fp32.val_loss) == (None, None, None)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16", "the prediction ran the model in this process"


class Leaking(Digits):
    """Keeps what it computed alive."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        self.kept.append(logits)
        return logits


def test_a_tensor_held_alive_is_told_and_recorded(train):
    model = ("model=custom", "model._target_=test_trusted_figures.Leaking", "data=digits", "task=classification")
    ended = train(*model, "data.batch_size=64", "trainer.steps=6", "tracking=disabled")
    assert only_run().record.memory.kept["activations"] >= 64 * 10 * 4
    assert re.search(r"warning +a step left 2\.\d+ KiB behind", ended.out)


@pytest.mark.usefixtures("foreign_load")
def test_a_busy_machine_is_said_and_recorded_and_the_run_goes_on(train):
    ended = train(*MLP, "trainer.max_seconds=1", "trainer.steps=1000000")
    assert ended.code == 0
    assert "fp32: the CPU was busy before the run began: other processes kept " in ended.err
    record = only_run().record
    assert record.status == "completed"
    assert record.contamination.verdict == "contaminated"
    assert any("cores busy during the run" in reason for reason in record.contamination.reasons)
    (workload,) = compare_directories([Path("outputs")]).comparison.workloads
    assert workload.arms[0].step_ms is None
    assert workload.arms[0].peak_memory_bytes is not None
