"""`ampsweep report DIR`: the comparison from the records alone; damaged files are named once, and the rest is used."""

import json
import os
import random
import re
import shlex
from functools import cache
from html import escape
from pathlib import Path

import pytest
from command_line import all_runs

from ampsweep.analysis.candidates import NoFinalLoss, ParityOpen
from ampsweep.analysis.deciding_command import deciding_command
from ampsweep.analysis.recommendation import Recommendation, Rivals
from ampsweep.analysis.runs import Run
from ampsweep.records import find_records
from ampsweep.report.compare import started_with

ARMS = ("fp32", "amp_bf16")
FIGURES = ("step_ms", "peak_memory_bytes", "val_loss", "val_accuracy", "skipped_steps")


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
    for path in before:
        path.unlink()
    printed = report(copied.directory)
    assert {path: path.read_bytes() for path in copied.directory.glob("comparison.*")} == before
    after_it = copied.ended.out.strip().removeprefix(printed.strip())
    assert {Path(line).name for line in after_it.splitlines() if line.strip()} == {"comparison.html", "comparison.md"}


def test_only_the_records_are_needed(copied, report):
    before = figures(copied.directory)
    for file in (copied.directory / "multirun.yaml", *copied.directory.glob("*/history.jsonl")):
        file.unlink()
    printed = report(copied.directory)
    assert printed.count("is not there") == 4, "of the runs that trained"
    assert figures(copied.directory) == before


def test_json_is_one_object_and_needs_no_room(copied, report, ampsweep, monkeypatch):
    printed = report(copied.directory, "--format", "json")
    assert printed.replace(f"{copied.directory}/", "") == (copied.directory / "comparison.json").read_text()

    def write_comparison(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("ampsweep.commands.report.write_comparison", write_comparison)
    ended = ampsweep("report", copied.directory, "--format", "json")
    assert (ended.code, ended.out) == (0, printed)
    assert ended.err.endswith("cannot be written: No space left on device\n")
    assert ampsweep("report", copied.directory).code == 2


def test_what_would_decide_it_is_a_command_that_train_accepts(copied, report, ampsweep):
    """Of two seeds a third is missing, beside load three; then seeds by the dozen, or longer trainings."""
    (workload,) = json.loads(report(copied.directory, "--format", "json"))["workloads"]
    verdict = workload["verdict"]
    assert re.search(r"1 more seed should decide it|Run 3 more seeds on an idle machine first", verdict["sentence"])
    text = report(copied.directory)
    assert f"{verdict['sentence'][:-1]}:\n    {verdict['command']}\n" in text
    python, script, *words = shlex.split(verdict["command"])
    assert (python, script, words[0]) == ("python", "train.py", "-m")
    assert {f"into=outputs/train/{copied.directory.name}", "precision=fp32,amp_bf16"} <= {*words}
    assert {"seed=2", "seed=2,3,4"} & {*words}
    ended = ampsweep("train", *words, "dry_run=true")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"(2 points, 2|6 points, 6) to train", ended.out)

    steps = int(next(word for word in words if word.startswith("trainer.steps=")).partition("=")[2])
    runs = {arm: [Run(run.directory, run.record) for run in copied.runs if run.record.arm == arm] for arm in ARMS}
    for missing, expected in (
        (ParityOpen(arm="amp_bf16", num_seeds=12), {"seed=range(2,14)"}),
        (ParityOpen(arm="amp_bf16", needs_longer=True), {"seed=0,1", f"trainer.steps={2 * steps}"}),
        (NoFinalLoss(arm="amp_bf16", metric="val/loss"), None),
    ):
        rivals = Rivals(baseline="fp32", leader="fp32", missing=(missing,))
        open_one = Recommendation(baseline="fp32", arm=None, undecided=rivals)
        command = deciding_command(open_one, runs, started_with)
        if expected is None:
            assert command is None
        else:
            words = shlex.split(command)[2:]
            assert expected <= {*words}
            assert ampsweep("train", *words, "dry_run=true").code == 0
    runs["amp_bf16"][1].record.status = "interrupted"
    rivals = Rivals(baseline="fp32", leader="fp32", missing=(ParityOpen(arm="amp_bf16", num_seeds=2),))
    open_one = Recommendation(baseline="fp32", arm=None, undecided=rivals)
    assert "seed=1,2" in deciding_command(open_one, runs, started_with), "what was interrupted comes first"
    (copied.directory / "multirun.yaml").unlink()
    assert deciding_command(open_one, runs, started_with) is None


def test_memory_that_runs_out_is_one_sentence(copied, ampsweep, monkeypatch):
    monkeypatch.setattr("ampsweep.commands.report.compare_directories", lambda *_, **__: bytearray(2**62))
    ended = ampsweep("report", copied.directory)
    assert (ended.code, ended.err) == (1, "error: out of memory\n")


def test_baseline_margin_and_memory_can_be_chosen(copied, report, ampsweep):
    chosen = ("--baseline", "amp_bf16", "--margin-pct", "7.5", "--memory-gib", "1e-6")
    assert "compared with amp_bf16" in report(copied.directory, *chosen)
    printed = json.loads(report(copied.directory, *chosen, "--format", "json"))
    assert (printed["baseline"], printed["margin_pct"], printed["memory_gib"]) == ("amp_bf16", 7.5, 1e-06)
    assert json.loads(report(copied.directory, "--format", "json"))["memory_gib"] is None
    assert json.dumps(printed["workloads"][0]["verdict"]).count("more than the 1.05 KiB given") >= 2
    ended = ampsweep("report", copied.directory, "--baseline", "fp33")
    refused = "error: --baseline fp33: no run is of this arm; there are amp_bf16, fp32, tf32\n"
    assert (ended.code, ended.out, ended.err) == (2, "", refused)


def test_several_directories_are_one_comparison_which_is_not_written(swept, report):
    before = {path: path.stat().st_mtime_ns for path in swept.directory.rglob("*")}
    printed = report(*(run.directory for run in swept.runs))
    assert "2 of 2 pairs completed" in " ".join(printed.split())
    assert {path: path.stat().st_mtime_ns for path in swept.directory.rglob("*")} == before


def test_wrong_arguments_are_one_sentence(ampsweep, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, said in {
        (): "COMMAND",
        ("guess",): "COMMAND guess: allowed are train, report, ",
        ("dcotor",): "COMMAND dcotor: did you mean doctor? Allowed are train, report, ",
        ("report",): "DIR",
        ("report", "nosuch"): "nosuch: no such directory",
        ("report", "empty"): "no run records",
        ("report", "empty", "--format", "xml"): "--format xml: allowed are console, json",
        ("report", "empty", "--format", "jsn"): "--format jsn: did you mean json? Allowed are console, json",
        ("report", "empty", "--margin-pct", "0"): "--margin-pct 0: must be greater than 0",
        ("report", "empty", "--memory-gib", "0"): "--memory-gib 0: must be greater than 0",
        ("report", "empty", "--colour"): "--colour; see ampsweep report --help",
        ("report", "empty", "--basline=a"): "--basline=a; did you mean --baseline? See ampsweep report --help",
        ("report", "empty", "--output", "x"): "--output x: is for the runs at one wandb://... address",
    }.items():
        ended = ampsweep(*arguments)
        (line,) = ended.err.splitlines()
        assert (ended.code, ended.out, line[:7]) == (2, "", "error: ")
        assert said in line


def test_each_damaged_file_is_named_once_everywhere(copied, ampsweep):
    at = {(run.record.arm, run.record.identity.seed): run.directory for run in copied.runs}
    undigested = at["tf32", 0] / "run.json"  # as in versions that wrote no digest
    content = json.loads(undigested.read_text()) | {"status": "<b>0</b>"}
    del content["digest"]
    undigested.write_text(json.dumps(content))
    expected = {f"{at['tf32', 0].name}/run.json": "is not a run record: status: invalid enum value '<b>0</b>'"}
    changed, unlike = "has been changed since", "it does not match its digest"
    newer = "is a run record of schema 99; this version of ampsweep reads schema 1"
    for key, name, pattern, new, reason in (
        (("amp_bf16", 1), "run.json", r'val/loss": \d', 'val/loss": 7', f"{changed} it was written: {unlike}"),
        (("tf32", 1), "run.json", r'"schema": 1', '"schema": 99', newer),
        (("fp32", 0), "history.jsonl", r'n/loss": (?!.*\n.*n/l)', 'n/loss": 1', f"{changed} its run ended: {unlike}"),
    ):
        (file := at[key] / name).write_text(re.sub(pattern, new, (at[key] / name).read_text(), count=1))
        expected[f"{file.parent.name}/{name}"] = reason
    (at["fp32", 1] / "history.jsonl").unlink()
    expected[f"{at['fp32', 1].name}/history.jsonl"] = "is not there"
    ended = ampsweep("report", copied.directory)
    assert (ended.code, ended.err) == (0, "")
    page, markdown = ((copied.directory / f"comparison.{kind}").read_text() for kind in ("html", "md"))
    for path, reason in expected.items():
        assert markdown.replace("\\", "").count(f"| {path} {reason} |") == 1
        assert page.count(f"{path} {escape(reason)}") == 1
    problems = json.loads((copied.directory / "comparison.json").read_text())["file_problems"]
    assert sorted((problem["path"], problem["reason"]) for problem in problems) == sorted(expected.items())
    assert sorted(problem["name"] for problem in problems) == ["no history"] * 2 + ["not readable"] * 3
    assert "1 of 2 pairs completed" in ended.words, "undamaged runs are compared"


def test_where_nothing_can_be_read_there_is_one_sentence(copied, ampsweep):
    for run in all_runs(copied.directory):
        (run.directory / "run.json").write_text("")
    before = (copied.directory / "comparison.json").read_bytes()
    ended = ampsweep("report", copied.directory)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("error: there is no record that can be read: ")
    assert ended.err.endswith("is not JSON: Expecting value: line 1 column 1 (char 0) (nor can 5 more of them)\n")
    assert (copied.directory / "comparison.json").read_bytes() == before


def damage(path, drawn):
    """Cut the file, change some of its bytes or the order of its lines, or put another in place."""
    content, kind = bytearray(path.read_bytes()), drawn.randrange(4)
    if kind == 0:
        path.write_bytes(content[: drawn.randrange(len(content) + 1)])
    elif kind == 1:
        for _ in range(drawn.choice((1, 3, 30)) if content else 0):
            index = drawn.randrange(len(content))
            digit = chr(content[index]).isdigit() and drawn.random() < 0.5
            content[index] = ord(drawn.choice("0123456789")) if digit else drawn.randrange(256)
        path.write_bytes(content)
    elif kind == 2:
        lines = path.read_bytes().splitlines(keepends=True)
        drawn.shuffle(lines)
        path.write_bytes(b"".join(lines + lines[:3]))
    else:
        path.unlink()
        drawn.choice((Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere"), lambda path: None))(path)


def figures(directory):
    """Each arm's own figures, in comparison.json, which is strict JSON."""
    comparison = json.loads((directory / "comparison.json").read_text(), parse_constant=pytest.fail)
    arms = [arm for workload in comparison["workloads"] for arm in workload["arms"]]
    return {arm["arm"]: {key: arm[key] for key in FIGURES} for arm in arms}


@pytest.mark.parametrize("numbers", [range(8), pytest.param(range(8, 200), marks=pytest.mark.nightly)], ids=str)
def test_no_damage_breaks_the_report_or_changes_other_runs(numbers, copied, ampsweep):
    """Damages one to three files in every way, over and over; the same ones in each session."""

    @cache
    def figures_without(lost):
        """The figures of the comparison as if some of its runs had never been."""
        moved = {place: copied.directory.parent / f"lost_{place.name}" for place in lost}
        for place, aside in moved.items():
            place.rename(aside)
        assert ampsweep("report", copied.directory).code == 0
        found = figures(copied.directory)
        for place, aside in moved.items():
            aside.rename(place)
        return found

    whole = {path: path.read_bytes() for path in sorted(copied.directory.glob("*/*.json*"))}
    for number in numbers:
        drawn = random.Random(number)
        damaged = drawn.sample(list(whole), drawn.choice((1, 1, 1, 2, 3)))
        for path in damaged:
            damage(path, drawn)
        ended = ampsweep("report", copied.directory)
        assert (ended.code, ended.err) == (0, ""), (number, damaged)
        now = figures(copied.directory)
        lost = {path.parent for path in damaged if not find_records(path.parent).records}
        for path in damaged:
            if path.is_dir():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(whole[path])
        assert now == figures_without(frozenset(lost)), (number, damaged)
