import json

import pytest
from synthetic_records import run

from ampsweep.analysis.comparison import compare
from ampsweep.record import find_records
from ampsweep.report.dashboard import curve_keys
from ampsweep.report.files import write_comparison
from ampsweep.report.histories import read_histories


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


FILES = {"comparison.json", "comparison.md", "comparison.html"}


def write_all(records, directory):
    histories = read_histories(records, curve_keys())
    write_comparison(compare(records, baseline="fp32", margin_pct=1.0), records, histories, directory)


def test_a_comparison_is_rebuilt_from_the_records_beside_it(tmp_path):
    for arm, step_ms in (("fp32", 10.0), ("amp_bf16", 5.0)):
        path, record = run(arm, step_ms=step_ms)
        (tmp_path / path.name).mkdir()
        record.write(tmp_path / path.name)
    write_all(find_records(tmp_path).records, tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == FILES
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert [entry["directory"] for entry in content["workloads"][0]["runs"]] == [
        "amp_bf16-gpt_tiny-8-s0",
        "fp32-gpt_tiny-8-s0",
    ]
    assert content["workloads"][0]["arms"][1]["speedup"]["value"] == 2.0
    assert "2.00x" in (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert "2.00x" in (tmp_path / "comparison.html").read_text(encoding="utf-8")


def test_writing_again_replaces_the_files_and_adds_none(tmp_path):
    (tmp_path / "comparison.md").write_text("old")
    write_all([run("fp32"), run("amp_bf16")], tmp_path)
    write_all([run("fp32"), run("amp_bf16")], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert "old" not in (tmp_path / "comparison.md").read_text(encoding="utf-8").split()


def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_all([run("fp32")], tmp_path / "missing")
