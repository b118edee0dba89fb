"""Several GPUs: what gloo on a CPU cannot show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ampsweep.records import RunRecord, read_history

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [("ddp", "amp_bf16"), ("ddp", "amp_fp16"), ("fsdp2", "amp_bf16"), ("fsdp2", "amp_fp16"), ("fsdp2", "pure_bf16")],
)
def test_two_gpus_train_and_record_their_waits(repository, tmp_path, strategy, mode):
    overrides = [f"parallel={strategy}", "parallel.num_processes=2", f"precision={mode}", "model=gpt_tiny"]
    overrides += ["trainer.steps=60", "device=cuda", "tracking=disabled", f"output_dir={tmp_path}"]
    overrides += ["data=synthetic_tokens", "trainer.warmup_seconds=0", "trainer.max_grad_norm=1.0"]
    subprocess.run([sys.executable, "train.py", *overrides], cwd=repository, check=True, timeout=280)
    (file,) = tmp_path.rglob("run.json")
    record, rows = RunRecord.read(file.parent), read_history(file.parent)
    assert record.status == "completed"
    assert [rank.device for rank in record.ranks] == ["cuda:0", "cuda:1"]
    if strategy == "ddp":
        assert 0 <= record.summary["perf/communication_ms"] < record.summary["perf/step_ms"]
        assert all(0 <= rank.communication_ms < rank.step_ms for rank in record.ranks)
    else:
        assert "perf/communication_ms" not in record.summary
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


STEPS = """
import os, sys
import torch
from trainings import STRATEGIES, Training, composed
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
config = composed(*STRATEGIES[sys.argv[1]], "model=gpt_tiny", "data=synthetic_tokens", "precision=amp_fp16")
trainer = Training(config, rank, device=torch.device("cuda", rank)).trainer
trainer.model.train()
with trainer.precision.flags():
    for step in range(8):
        with trainer.instruments.step():
            torch.cuda.set_sync_debug_mode("error" if step > 4 else "default")  # rows are read between steps
            trainer.train_step()
            torch.cuda.set_sync_debug_mode("default")
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("strategy", ["ddp", "policy"])
def test_a_step_on_two_gpus_makes_the_host_wait_for_nothing(tmp_path, strategy):
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script), strategy]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=True, timeout=280)
