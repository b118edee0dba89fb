"""A new precision mode takes an entry in the table of modes and one class."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ampsweep.analysis.runs import Run
from ampsweep.config.modes import MODES
from ampsweep.records import RunRecord

DIFF = Path(__file__).with_name("new_mode.diff")
"""Adds the mode `rounded`: float32 whose parameters are rounded to bfloat16 after each step."""


def test_a_new_mode_touches_the_table_and_one_class(repository):
    touched = [line.removeprefix("+++ b/") for line in DIFF.read_text().splitlines() if line.startswith("+++")]
    assert touched == ["src/ampsweep/config/modes.py", "src/ampsweep/precision/rounded.py"]
    assert "rounded" not in MODES
    subprocess.run(["git", "apply", "--check", DIFF], cwd=repository, check=True)


@pytest.mark.nightly
def test_a_new_mode_is_trained_by_its_own_class(repository, tmp_path):
    for folder in ("src", "conf"):
        shutil.copytree(repository / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "train.py", tmp_path)
    subprocess.run(["git", "apply", DIFF], cwd=tmp_path, check=True)
    short = ["model=mlp_small", "trainer.steps=2", "trainer.checkpoint_every=2", "tracking=disabled", "device=cpu"]
    command = [sys.executable, "train.py", "precision=rounded", *short, f"output_dir={tmp_path / 'runs'}"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "WANDB_MODE": "offline"}
    subprocess.check_output(command, cwd=tmp_path, env=environment)
    (path,) = (tmp_path / "runs").rglob("run.json")
    record = json.loads(path.read_text())
    assert (record["status"], record["arm"], record["identity"]["dtype"]) == ("completed", "rounded", "float32")
    assert Run(path.parent, RunRecord.read(path.parent)).contradictions == ()
    (checkpoint,) = path.parent.rglob("last.pt")
    parameters = torch.load(checkpoint, weights_only=False)["model"]
    assert all(torch.equal(value, value.bfloat16().float()) for value in parameters.values())
