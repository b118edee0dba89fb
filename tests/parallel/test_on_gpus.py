"""Several GPUs: what gloo on a CPU cannot show."""

import json
import subprocess
import sys

import pytest
import torch

from ampsweep.record import RunRecord

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [("ddp", "amp_bf16"), ("ddp", "amp_fp16"), ("fsdp2", "amp_bf16"), ("fsdp2", "amp_fp16"), ("fsdp2", "pure_bf16")],
)
def test_two_gpus_train_and_record_their_waits(repository, tmp_path, strategy, mode):
    overrides = [f"parallel={strategy}", "parallel.num_processes=2", f"precision={mode}", "model=gpt_tiny"]
    overrides += ["trainer.steps=60", "device=cuda", "tracking=disabled", f"output_dir={tmp_path}"]
    overrides += ["data=synthetic_tokens", "trainer.warmup_seconds=0", "trainer.max_grad_norm=1.0"]
    command = [sys.executable, "train.py", *overrides]
    subprocess.run(command, cwd=repository, check=True, timeout=280)
    (file,) = tmp_path.rglob("run.json")
    record = RunRecord.read(file.parent)
    assert record.status == "completed"
    assert len(record.ranks) == 2
    assert {rank.device for rank in record.ranks} == {"cuda:0", "cuda:1"}
    if strategy == "ddp":
        assert 0 <= record.summary["perf/communication_ms"] < record.summary["perf/step_ms"]
        assert all(0 <= rank.communication_ms < rank.step_ms for rank in record.ranks)
    else:
        assert "perf/communication_ms" not in record.summary
    rows = [json.loads(line) for line in (file.parent / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


STEPS = """
import os, sys
from types import SimpleNamespace
import torch
import torch.distributed as dist
from ampsweep.config.compose import compose_one
from ampsweep.parallel.rank_environment import place_in
from ampsweep.parallel.strategy import make_parallel
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl")
config = compose_one((f"parallel={sys.argv[1]}", "parallel.num_processes=2", "precision=amp_fp16", "model=gpt_tiny",
                      "data=synthetic_tokens", "tracking=disabled", "scheduler=constant", "trainer.steps=20"))
parallel = make_parallel(config.parallel, SimpleNamespace(place=place_in()), device)
built = build(config, device, build_data(config, device), parallel)
trainer = assemble_trainer(config, built, device)
trainer.model.train()
with trainer.precision.flags():
    for step in range(8):
        with trainer.instruments.step():
            torch.cuda.set_sync_debug_mode("error" if step > 4 else "default")  # rows are read between steps
            trainer.train_step()
            torch.cuda.set_sync_debug_mode("default")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_step_on_two_gpus_makes_the_host_wait_for_nothing(repository, tmp_path, strategy):
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script), strategy]
    subprocess.run(command, cwd=repository, check=True, timeout=280)
