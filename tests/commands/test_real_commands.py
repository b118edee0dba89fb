"""Commands in processes of their own: a script that only reads `wandb.config`, and a stop from outside."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import PATIENCE_S, wait_until

from ampsweep.records import find_records

pytestmark = pytest.mark.nightly

SCRIPT = """
import sys, time, torch, wandb
run = wandb.init(project="theirs", mode="offline", config={"precision": "none", "seed": 0})
torch.manual_seed(wandb.config.seed)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 8)
for step in range(int(sys.argv[1])):
    with torch.autocast("cpu", torch.bfloat16, enabled=wandb.config.precision == "bf16"):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(sys.argv[2]))
wandb.log({"eval/loss": loss.item()})
print(wandb.config.precision, wandb.config.seed)
"""
SWEEP = """
program: theirs.py
method: grid
metric: {name: eval/loss, goal: minimize}
parameters: {precision: {values: [fp32, bf16]}, seed: {value: 7}}
command: ["${env}", A=1, "${interpreter}", "${program}", 20, 0]
"""


def test_a_script_finds_its_point_in_the_config_of_wandb(ampsweep):
    Path("theirs.py").write_text(SCRIPT)
    Path("sweep.yaml").write_text(SWEEP)
    ended = ampsweep("sweep", "sweep.yaml", "into=runs")
    assert ended.code == 0
    found = {record.arm: record for _, record in find_records(Path("runs")).records}
    assert {arm: record.dtypes.compute for arm, record in found.items()} == {"fp32": "float32", "bf16": "bfloat16"}
    assert {record.config["own"]["seed"] for record in found.values()} == {7}
    assert all(record.summary["eval/loss"] > 0 for record in found.values())
    for arm in found:
        (output,) = Path("runs").glob(f"{arm}-*/output.log")
        assert f"{arm} 7\n" in output.read_text()
    (workload,) = json.loads(Path("runs/comparison.json").read_text())["workloads"]
    assert [arm["num_completed_pairs"] for arm in workload["arms"]] == [0, 1]


def test_sigterm_ends_the_command_and_then_the_comparison():
    Path("theirs.py").write_text(SCRIPT)
    commands = [f"{arm}: {sys.executable} theirs.py {how}" for arm, how in (("fp32", "20 0"), ("slow", "10000 0.1"))]
    command = [sys.executable, "-m", "ampsweep.commands.main", "compare", "--into", "runs", *commands]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: [*Path("runs").glob("slow-*/*/history.jsonl")], "the second command trains")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"with --into {Path.cwd()}/runs goes on with it" in err
    statuses = {record.arm: record.status for _, record in find_records(Path("runs")).records}
    assert statuses == {"fp32": "completed", "slow": "interrupted"}
    assert "comparison.html" in out
