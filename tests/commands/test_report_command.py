"""`ampsweep report DIR`: the comparison from the records alone."""

import json
import os
from pathlib import Path

import pytest
from command_line import all_runs


@pytest.fixture
def report(ampsweep):
    """The stdout of the command, which must end well."""

    def report(*arguments):
        ended = ampsweep("report", *arguments)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    return report


def test_a_deleted_comparison_is_rebuilt_as_it_was(copied, report):
    before = {path: path.read_bytes() for path in copied.directory.glob("comparison.*")}
    assert before
    for path in before:
        path.unlink()
    printed = report(copied.directory)
    assert {path: path.read_bytes() for path in copied.directory.glob("comparison.*")} == before
    after_it = copied.ended.out.strip().removeprefix(printed.strip())
    assert {Path(line).name for line in after_it.splitlines() if line.strip()} == {"comparison.html", "comparison.md"}


def test_only_the_records_are_needed(copied, report):
    """Without the histories it is the same but for rows that say so."""

    def lines() -> list[str]:
        """The lines without what depends on the width of a table."""
        lines = (" ".join(line.split()) for line in report(copied.directory).splitlines())
        return [line for line in lines if line.strip("─")]

    whole = lines()
    for run in all_runs(copied.directory):
        (run.directory / "history.jsonl").unlink(missing_ok=True)
    (copied.directory / "multirun.yaml").unlink()
    without = lines()
    assert [line for line in whole if line not in without] == []
    assert sum("no history" in line and "is not there" in line for line in without) == 4


def test_json_is_one_object_and_needs_no_room(copied, report, ampsweep, monkeypatch):
    """As in the file, where directories are relative to its own, so that all of it can be moved."""
    printed = report(copied.directory, "--format", "json")
    assert isinstance(json.loads(printed), dict)
    assert printed.replace(f"{copied.directory}/", "") == (copied.directory / "comparison.json").read_text()

    def write_comparison(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("ampsweep.commands.report.write_comparison", write_comparison)
    ended = ampsweep("report", copied.directory, "--format", "json")
    assert ended.code == 0
    assert json.loads(ended.out)
    assert ended.err.endswith("cannot be written: No space left on device\n")
    assert ampsweep("report", copied.directory).code == 2


def test_memory_that_runs_out_is_one_sentence(copied, ampsweep, monkeypatch):
    monkeypatch.setattr("ampsweep.commands.report.compare_directories", lambda *_, **__: bytearray(2**62))
    ended = ampsweep("report", copied.directory)
    assert (ended.code, ended.err) == (1, "error: out of memory\n")


def test_baseline_margin_and_memory_can_be_chosen(copied, report, ampsweep):
    assert "compared with amp_bf16" in report(copied.directory, "--baseline", "amp_bf16")
    assert "7.5" in report(copied.directory, "--margin-pct", "7.5", "--format", "json")
    assert json.loads(report(copied.directory, "--format", "json"))["memory_gib"] is None
    printed = json.loads(report(copied.directory, "--memory-gib", "1e-6", "--format", "json"))
    assert printed["memory_gib"] == 1e-06
    standings = printed["workloads"][0]["verdict"]["recommendation"]["standings"]
    reasons = {standing["arm"]: standing["reason"] for standing in standings}
    assert all("more than the 1.05 KiB given" in reasons[arm] for arm in ("fp32", "amp_bf16"))
    ended = ampsweep("report", copied.directory, "--baseline", "fp33")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: --baseline fp33: no run is of this arm; there are amp_bf16, fp32, tf32\n"


def test_several_directories_are_one_comparison_which_is_not_written(swept, report):
    before = {path: path.stat().st_mtime_ns for path in swept.directory.rglob("*")}
    printed = report(*(run.directory for run in swept.runs))
    assert "2 of 2 pairs completed" in " ".join(printed.split())
    assert {path: path.stat().st_mtime_ns for path in swept.directory.rglob("*")} == before


def test_wrong_arguments_are_one_sentence(ampsweep, tmp_path):
    for name, content in (("broken", "{"), ("newer", '{"schema": 99}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    (tmp_path / "empty").mkdir()
    for arguments, said in {
        (): "COMMAND",
        ("guess",): "'guess'",
        ("report",): "DIR",
        ("report", "nosuch"): "nosuch: no such directory",
        ("report", "empty"): "no run records",
        ("report", "broken"): "run.json is not JSON",
        ("report", "newer"): "run.json is a run record of schema 99; this version of ampsweep reads schema 1",
        ("report", "empty", "--format", "xml"): "'xml'",
        ("report", "empty", "--margin-pct", "0"): "--margin-pct 0: must be greater than 0",
        ("report", "empty", "--memory-gib", "0"): "--memory-gib 0: must be greater than 0",
        ("report", "empty", "--colour"): "--colour",
        ("report", "empty", "--output", "x"): "--output x: is for the runs at one wandb://... address",
    }.items():
        ended = ampsweep(*arguments)
        assert (ended.code, ended.out) == (2, "")
        (line,) = ended.err.splitlines()
        assert line.startswith("error: ")
        assert said in line
