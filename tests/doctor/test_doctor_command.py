import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from planted import around

from ampsweep.doctor.diagnosis import DIAGNOSIS_NAME
from ampsweep.record import RunRecord
from ampsweep.record.numerics import RunNumerics

SMALL = (
    *around("FastExp", file="planted_numerics", width=64),
    "tracking=disabled",
    "trainer.steps=12",
    "doctor.steps=4",
)
PLAIN = ("model=mlp_small", "data=synthetic", "data.batch_size=8", "model.hidden_size=16", "tracking=disabled")


def ampsweep(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ampsweep.commands.main", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def the_run(directory: Path) -> Path:
    (found,) = directory.rglob("run.json")
    return found.parent


def test_a_finding_is_told_and_kept(tmp_path):
    done = ampsweep(tmp_path, "doctor", "precision=amp_bf16", *SMALL, "doctor.complaints=[numerics]")
    assert done.returncode == 0, done.stderr
    assert "planted.fast_exp of inner" in done.stdout
    assert "precision.fp32_modules=[inner]" in done.stdout
    (directory,) = (path.parent for path in tmp_path.rglob(DIAGNOSIS_NAME))
    assert {path.name for path in directory.iterdir()} == {"diagnosis.json", "diagnosis.html", "diagnosis.md"}
    (finding,) = json.loads((directory / DIAGNOSIS_NAME).read_text())["findings"]
    assert finding["kind"] == "unexplained_error"
    assert finding["evidence"]["error"] > finding["evidence"]["explained_error"]


def test_json_is_one_object_also_where_no_file_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    asked = ("doctor.complaints=[numerics]", "format=json", "output_dir=file/x")
    done = ampsweep(tmp_path, "doctor", *SMALL, *asked)
    assert done.stderr.splitlines()[-1].startswith("the diagnosis's files are not written: output_dir=file/x: ")
    found = json.loads(done.stdout)
    assert found["arm"] == "amp_bf16"
    (finding,) = found["findings"]
    assert (finding["kind"], finding["modules"]) == ("unexplained_error", ["inner"])
    assert finding["headline"]
    assert finding["change"]["overrides"] == ["precision.fp32_modules=[inner]"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-m", "seed=0,1", *PLAIN), "the doctor examines one training at a time, not 2"),
        (("parallel=ddp", "parallel.num_processes=2", *PLAIN), "parallel=ddp: the doctor examines a training in one"),
        (("doctor.complaints=[los]", *PLAIN), "doctor.complaints=los: allowed are types, loss, numerics, memory"),
        (("doctor.steps=0", *PLAIN), "doctor.steps=0: must be"),
        (("format=xml", *PLAIN), "format=xml: allowed are console, json"),
        (("--try", *PLAIN), "unknown option --try"),
        (("precision=pure_fp16", "precision.grad_scaler=true", *PLAIN), "precision"),
        (("model=mlp_small", "data=digits", "model.in_features=3"), "model=mlp_small"),
        (("nothing_like_it",), "nothing_like_it"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, sentence, tmp_path):
    done = ampsweep(tmp_path, "doctor", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith(f"error: {sentence}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_examined_from_before_its_fault(tmp_path):
    """A learning rate that float16 does not stand makes the run diverge late: the doctor begins a few steps before."""
    overrides = ("precision=amp_fp16", "trainer.log_every=1", "trainer.steps=60")
    late = ("model=custom", "model._target_=late_models.OverflowsLate", "+model.at_step=30")
    done = ampsweep(tmp_path, "train", *SMALL[3:-2], *late, *overrides)
    directory = the_run(tmp_path)
    assert RunRecord.read(directory).status == "diverged", done.stdout + done.stderr
    done = ampsweep(tmp_path, "doctor", str(directory), "doctor.complaints=[loss,numerics]", "format=json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["run"] == str(directory)
    assert 15 < found["first_step"] < 30
    assert found["findings"][0]["complaint"] == "loss"
    assert found["findings"][0]["modules"] == ["late"]
    assert json.loads((directory / DIAGNOSIS_NAME).read_text())["run"] == str(directory)


def test_a_run_that_went_well_has_no_finding(tmp_path):
    ampsweep(tmp_path, "train", *PLAIN, "precision=amp_bf16", "trainer.steps=12", "numerics.watch=true")
    directory = the_run(tmp_path)
    assert RunNumerics.read(directory).steps
    done = ampsweep(tmp_path, "doctor", str(directory), "doctor.complaints=[loss,numerics,types]", "doctor.steps=5")
    assert done.returncode == 0, done.stderr
    assert "nothing found" in done.stdout.lower()


def test_a_directory_without_a_whole_run_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    done = ampsweep(tmp_path, "doctor", "run")
    assert done.returncode == 2
    assert "is not the directory of a run" in done.stderr
