"""`ampsweep report DIR`: the comparison from the records alone."""

import json
import os
from pathlib import Path

import pytest
from command_line import all_runs

from ampsweep.commands.main import main


@pytest.fixture
def report(capsys):
    """What the command prints; it must end well."""

    def report(*arguments):
        assert main(["report", *map(str, arguments)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return report


def test_a_deleted_comparison_is_rebuilt_as_it_was(copied, report):
    files = sorted(copied.directory.glob("comparison.*"))
    before = {path: path.read_bytes() for path in files}
    assert before
    for path in files:
        path.unlink()
    printed = report(copied.directory)
    assert {path: path.read_bytes() for path in sorted(copied.directory.glob("comparison.*"))} == before
    after_it = copied.ended.out.strip().removeprefix(printed.strip())
    assert {Path(line).name for line in after_it.splitlines() if line.strip()} == {"comparison.html", "comparison.md"}


def test_only_the_records_are_needed(copied, report):
    """Without the histories it is the same but for rows that say so."""

    def words() -> list[str]:
        """The lines without what depends on the width of a table."""
        lines = (" ".join(line.split()) for line in report(copied.directory).splitlines())
        return [line for line in lines if line.strip("─")]

    whole = words()
    for run in all_runs(copied.directory):
        (run.directory / "history.jsonl").unlink(missing_ok=True)
    (copied.directory / "multirun.yaml").unlink()
    lines = words()
    assert [line for line in whole if line not in lines] == []
    assert sum("no history" in line and "is not there" in line for line in lines) == 4


def test_json_is_one_object_and_nothing_else(copied, report):
    """As in the file, where directories are relative to its own, so that all of it can be moved."""
    printed = report(copied.directory, "--format", "json")
    assert isinstance(json.loads(printed), dict)
    assert printed.replace(f"{copied.directory}/", "") == (copied.directory / "comparison.json").read_text()


def test_json_needs_no_room(copied, capsys, monkeypatch):
    def write_comparison(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("ampsweep.commands.report.write_comparison", write_comparison)
    assert main(["report", str(copied.directory), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert err.endswith("cannot be written: No space left on device\n")


def test_memory_that_runs_out_is_one_sentence(copied, capsys, monkeypatch):
    monkeypatch.setattr("ampsweep.commands.report.compare_directories", lambda *_, **__: bytearray(2**62))
    assert main(["report", str(copied.directory)]) == 1
    assert capsys.readouterr().err == "error: out of memory\n"


def test_baseline_and_margin_can_be_chosen(copied, report):
    assert "compared with amp_bf16" in report(copied.directory, "--baseline", "amp_bf16")
    printed = json.loads(report(copied.directory, "--margin-pct", "7.5", "--format", "json"))
    assert "7.5" in json.dumps(printed)


def test_the_memory_can_be_chosen(copied, report):
    assert json.loads(report(copied.directory, "--format", "json"))["memory_gib"] is None
    chosen = ("--memory-gib", "1e-6")
    printed = json.loads(report(copied.directory, *chosen, "--format", "json"))
    assert printed["memory_gib"] == 1e-06
    standings = printed["workloads"][0]["verdict"]["recommendation"]["standings"]
    told = {one["arm"]: one["reason"] for one in standings}
    assert all("more than the 1.05 KiB given" in told[arm] for arm in ("fp32", "amp_bf16"))


def test_several_directories_are_one_comparison(swept, copied, report):
    """Read only: there is no place that both belong to."""
    before = {path: path.stat().st_mtime_ns for path in swept.directory.glob("comparison.*")}
    runs = all_runs(copied.directory)
    printed = report(*(run.directory for run in runs))
    assert "2 of 2 pairs completed" in " ".join(printed.split())
    assert not [path for run in runs for path in run.directory.glob("comparison.*")]
    assert {path: path.stat().st_mtime_ns for path in swept.directory.glob("comparison.*")} == before
