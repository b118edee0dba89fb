"""A record says whether its figures can be trusted, and a comparison trusts no others."""

import re
from pathlib import Path

import torch
from command_line import MLP, all_runs
from own_models import Digits

from ampsweep.report.compare import compare_directories


class Tampering(Digits):
    """Lets float32 matmuls lose bits, as some libraries do when they are imported; keeps what it computed alive."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def happens(self, step: int) -> None:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        self.kept.append(logits)
        return logits


TAMPERED = "mkldnn_matmul_fp32_precision is bf16 during training, although precision.tf32=false"


def test_a_record_holds_the_proof_of_its_mode(recorded):
    runs = {run.record.arm: run for run in recorded("offline").runs}
    assert [run.contradictions for run in runs.values()] == [()] * 5
    proof = runs["fp32"].record.proof
    assert proof.fp32_arithmetic == {"matmul": "exact"}
    assert proof.fp32_bits == {"matmul": 23}
    assert proof.flags["mkldnn_matmul_fp32_precision"] == "ieee"
    assert proof.flops.keys() == {"float32"}
    assert runs["pure_bf16"].record.proof.fp32_arithmetic is None, "parameters in 16 bit promise nothing of float32"


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


def test_a_run_that_was_not_its_mode_or_leaks_is_reported(train):
    """It is in no comparison."""
    assert train(*MLP, "trainer.steps=6", "precision=amp_bf16").code == 0
    tampered = ("model=custom", "model._target_=test_trusted_figures.Tampering", "data=digits", "task=classification")
    ended = train(*tampered, "data.batch_size=64", "trainer.steps=6", "tracking=disabled")
    assert f"disproved: {TAMPERED}" in ended.out
    assert sorted(run.contradictions for run in all_runs()) == [(), (TAMPERED,)]
    assert re.search(r"warning +a step left 2\.\d+ KiB behind", ended.out)
    assert all_runs()[1].record.memory.kept["activations"] >= 64 * 10 * 4
    comparison = compare_directories([Path("outputs")]).comparison
    fp32 = next(arm for workload in comparison.workloads for arm in workload.arms if arm.arm == "fp32")
    assert fp32.statuses == {"disproved": 1}
    assert (fp32.step_ms, fp32.peak_memory_bytes, fp32.val_loss) == (None, None, None)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16", "the prediction ran the model in this process"
