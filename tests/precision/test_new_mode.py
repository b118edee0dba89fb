"""A new precision mode: an entry of the table and one class, and all the rest of the house knows it."""

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
from ampsweep.record import RunRecord

DIFF = Path(__file__).with_name("new_mode.diff")
"""What the mode `rounded` touches: float32 whose parameters are rounded to bfloat16 after each step."""

FACTS = """
import json
import torch
from ampsweep.config.modes import MODES, arm_label, report_order, step_dtypes
from ampsweep.config.compose import compose_one
from ampsweep.precision import Precision
from ampsweep.precision.precision import unsupported_reason
from ampsweep.report.palette import arm_colour
mode = compose_one(["precision=rounded", "precision.grad_scaler=true"]).precision
print(json.dumps({
    "label": arm_label(mode),
    "colour": arm_colour(arm_label(mode)),
    "order": sorted(["mine", arm_label(mode), "pure_fp16", "fp32"], key=report_order),
    "computes in": step_dtypes(mode).compute,
    "unsupported": unsupported_reason(mode, torch.device("cpu")),
    "class": type(Precision("rounded", "cpu")).__name__,
}))
"""


@pytest.fixture(scope="module")
def tree(repository, tmp_path_factory):
    """A copy of the repository with the mode added to it."""
    tree = tmp_path_factory.mktemp("repository")
    for folder in ("src", "conf"):
        shutil.copytree(repository / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "train.py", tree)
    subprocess.run(["git", "apply", DIFF], cwd=tree, check=True)
    return tree


def python(tree, *arguments):
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "WANDB_MODE": "offline"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_new_mode_touches_the_table_and_one_class():
    touched = [line.removeprefix("+++ b/") for line in DIFF.read_text().splitlines() if line.startswith("+++")]
    assert touched == ["src/ampsweep/config/modes.py", "src/ampsweep/precision/rounded.py"]
    assert "rounded" not in MODES


@pytest.mark.slow
def test_a_new_mode_has_label_colour_order_and_support(tree):
    assert json.loads(python(tree, "-c", FACTS)) == {
        "label": "rounded+grad_scaler=true",
        "colour": "#117733",
        "order": ["fp32", "rounded+grad_scaler=true", "pure_fp16", "mine"],
        "computes in": "float32",
        "unsupported": None,
        "class": "Rounded",
    }


@pytest.mark.slow
def test_a_new_mode_is_trained_by_its_own_class(tree, tmp_path):
    short = ["model=mlp_small", "trainer.steps=2", "trainer.checkpoint_every=2", "tracking=disabled", "device=cpu"]
    python(tree, "train.py", "precision=rounded", *short, f"output_dir={tmp_path}")
    (path,) = tmp_path.rglob("run.json")
    record = json.loads(path.read_text())
    assert (record["status"], record["arm"], record["identity"]["dtype"]) == ("completed", "rounded", "float32")
    assert Run(path.parent, RunRecord.read(path.parent)).contradictions == ()
    (checkpoint,) = path.parent.rglob("*.pt")
    parameters = torch.load(checkpoint, weights_only=False)["model"]
    assert all(torch.equal(value, value.bfloat16().float()) for value in parameters.values())
