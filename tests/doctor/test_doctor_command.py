import json

import planted_loss
import planted_numerics
import pytest

from ampsweep.commands.main import main
from ampsweep.doctor.diagnosis import DIAGNOSIS_NAME
from ampsweep.records import RunRecord

SMALL = (*planted_numerics.net("fast_exp"), "tracking=disabled", "doctor.steps=4", "doctor.complaints=[numerics]")
PLAIN = ("model=mlp_small", "data=synthetic", "data.batch_size=8", "model.hidden_size=16", "tracking=disabled")


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_finding_is_printed_and_kept(tmp_path, capsys):
    assert main(["doctor", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "planted.fast_exp in inner" in printed
    assert "precision.fp32_modules=[inner]" in printed
    (directory,) = (path.parent for path in tmp_path.rglob(DIAGNOSIS_NAME))
    assert {path.name for path in directory.iterdir()} == {"diagnosis.json", "diagnosis.html", "diagnosis.md"}
    diagnosis = json.loads((directory / DIAGNOSIS_NAME).read_text())
    assert (diagnosis["schema"], diagnosis["unexamined"], diagnosis["run"]) == (1, [], None)
    (finding,) = diagnosis["findings"]
    assert (finding["kind"], finding["proof"]["mends"]) == ("large_error", True)
    assert finding["evidence"]["error_pct"] > finding["evidence"]["explained_pct"]
    assert finding["change"]["overrides"] == ["precision.fp32_modules=[inner]"]
    assert finding["sentences"]["change"] == "compute it in float32"


def test_json_is_an_object_also_where_no_file_can_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["doctor", *SMALL[:-1], "doctor.complaints=[types]", "format=json", "output_dir=file/x"]) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("the diagnosis's files are not written: output_dir=file/x: ")
    found = json.loads(printed.out)
    assert (found["arm"], found["findings"]) == ("amp_bf16", [])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-m", "seed=0,1", *PLAIN), "the doctor examines one training at a time, not 2"),
        (("parallel=ddp", "parallel.num_processes=2", *PLAIN), "parallel=ddp: the doctor examines a training in one"),
        (("doctor.complaints=[los]", *PLAIN), "doctor.complaints=los: did you mean loss? Allowed are types, loss"),
        (("doctor.steps=0", *PLAIN), "doctor.steps=0: must be"),
        (("format=xml", *PLAIN), "format=xml: allowed are console, json"),
        (("run",), "{run} is no run directory: "),
        (("doctor.steps=5", "/no/run"), "/no/run is no run directory: it has no run.json\n"),
        (("/no/run=5/x",), "/no/run=5/x is no run directory: "),
        (("run", "/no/run"), "the doctor examines one run at a time, not run and /no/run"),
    ],
)
def test_wrong_input_is_a_sentence(arguments, sentence, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    assert main(["doctor", *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {sentence.format(run=tmp_path / 'run')}")
    assert printed.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_is_examined_from_before_its_fault(tmp_path, capsys):
    late = planted_loss.net("late", "amp_fp16", "trainer.log_every=1", "trainer.steps=60", num_layers=1)
    main(["train", *late])
    (directory,) = (path.parent for path in tmp_path.rglob("run.json"))
    assert RunRecord.read(directory).status == "diverged", capsys.readouterr()
    capsys.readouterr()
    main(["doctor", str(directory), "doctor.complaints=[loss]", "doctor.steps=4", "format=json"])
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == str(directory)
    assert 15 < found["first_step"] < 30
    assert (found["findings"][0]["complaint"], found["findings"][0]["modules"]) == ("loss", ["inner"])
    assert json.loads((directory / DIAGNOSIS_NAME).read_text())["run"] == str(directory)
