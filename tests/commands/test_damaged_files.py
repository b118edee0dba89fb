"""Files that are damaged, missing or of another version: each is named once, and everything else is used."""

import json
import math
import random
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from command_line import all_runs

from ampsweep.record import RecordError, RunRecord

FIGURES = ("step_ms", "peak_memory_bytes", "val_loss", "val_accuracy", "skipped_steps")


@pytest.fixture
def report(ampsweep):
    return lambda *arguments: ampsweep("report", *arguments)


def run_of(swept, arm, seed=0):
    (run,) = [run for run in swept.runs if (run.record.arm, run.record.identity.seed) == (arm, seed)]
    return run


def change(run, **changes):
    """Change values of a record at dotted keys, as in records of versions that wrote no digest."""
    path = run.directory / "run.json"
    content = json.loads(path.read_text())
    content.pop("digest", None)
    for dotted, value in changes.items():
        *parents, key = dotted.split(".")
        node = content
        for parent in parents:
            node = node[parent]
        node[key] = value
    path.write_text(json.dumps(content))


def page_text(directory):
    return (directory / "comparison.html").read_text(encoding="utf-8")


def file_problems(directory):
    return json.loads((directory / "comparison.json").read_text())["file_problems"]


def test_each_damaged_file_is_named_once_everywhere(copied, report):
    arms = {(arm, seed): run_of(copied, arm, seed) for arm in ("fp32", "amp_bf16", "tf32") for seed in (0, 1)}
    name = {key: run.directory.name for key, run in arms.items()}
    change(arms["amp_bf16", 1], schema=99)
    change(arms["tf32", 0], status="<b>0</b>")
    (arms["tf32", 1].directory / "run.json").write_text('{"schema": 1,')
    history = arms["fp32", 0].directory / "history.jsonl"
    lines = history.read_bytes().splitlines(keepends=True)
    history.write_bytes(b"".join([lines[0], b"\xff\n", *lines[1:]]))
    (arms["fp32", 1].directory / "history.jsonl").unlink()
    expected = {
        f"{name['amp_bf16', 1]}/run.json": "is a run record of schema 99; this version of ampsweep reads schema 1",
        f"{name['tf32', 0]}/run.json": "is not a run record: status: invalid enum value '<b>0</b>'",
        f"{name['tf32', 1]}/run.json": "is not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 14 (char 13)",
        f"{name['fp32', 0]}/history.jsonl": "is damaged: line 2 is not JSON",
        f"{name['fp32', 1]}/history.jsonl": "is not there",
    }
    ended = report(copied.directory)
    assert (ended.code, ended.err) == (0, "")
    page = page_text(copied.directory)
    markdown = (copied.directory / "comparison.md").read_text(encoding="utf-8").replace("\\", "")
    for path, reason in expected.items():
        assert markdown.count(f"| {path} {reason} |") == 1
        shown = reason.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;")
        assert page.count(f"{path} {shown}") == 1
    problems = file_problems(copied.directory)
    assert {problem["path"]: problem["reason"] for problem in problems} == expected
    assert len(problems) == len(expected)
    assert "0 of 2 pairs completed" not in ended.out
    assert "1 of 2 pairs completed" in ended.words, "undamaged runs are compared"


def test_a_changed_digit_is_noticed_and_left_out(copied, report):
    record, rows = run_of(copied, "amp_bf16", 1).directory / "run.json", run_of(copied, "fp32", 0).directory
    record.write_text(re.sub(r'"val/loss": \d', '"val/loss": 7', record.read_text()))
    history = rows / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    history.write_text("".join([*lines[:-1], lines[-1].replace('"train/loss": ', '"train/loss": 1')]))
    ended = report(copied.directory)
    assert (ended.code, ended.err) == (0, "")
    assert (ended.words.count("no history"), ended.words.count("not readable")) == (1, 1)
    problems = file_problems(copied.directory)
    assert {problem["sentence"] for problem in problems} == {
        f"{record.parent.name}/run.json has been changed since it was written: it does not match its digest",
        f"{rows.name}/history.jsonl has been changed since its run ended: it does not match its digest",
    }
    assert sorted(problem["name"] for problem in problems) == ["no history", "not readable"]


def test_where_nothing_can_be_read_there_is_one_sentence(copied, report):
    for run in all_runs(copied.directory):
        (run.directory / "run.json").write_text("")
    before = (copied.directory / "comparison.json").read_bytes()
    ended = report(copied.directory)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: there is no record that can be read: ")
    assert ended.err.endswith(
        "run.json is not JSON: Expecting value: line 1 column 1 (char 0) (nor can 5 more of them)\n"
    )
    assert ended.err.count("\n") == 1
    assert (copied.directory / "comparison.json").read_bytes() == before


def test_odd_records_are_compared_as_far_as_possible(copied, report):
    hostile = "<script>alert(1)</script>"
    change(run_of(copied, "amp_bf16"), arm=hostile, summary={hostile: hostile}, error=hostile, cut_short=hostile)
    change(run_of(copied, "fp32"), **{"identity.seed": hostile})
    change(run_of(copied, "fp32", 1), **{"identity.device_name": "a GPU", "pair_key": "another", "config": {}})
    ended = report(copied.directory)
    assert ended.code == 0
    assert ended.words.count("Runs of 2 devices are compared only with those of the same: ") == 1
    assert hostile not in page_text(copied.directory)
    for path in copied.directory.glob("fp32-*"):
        shutil.rmtree(path)
    ended = report(copied.directory)
    assert ended.code == 0
    assert ended.words.count("There is no fp32 run to compare with") == 1


ODD_VALUES = (
    None,
    True,
    -1,
    1e300,
    10**30,
    math.nan,
    "",
    "NaN",
    [],
    {"a": [{}]},
    "<script>alert(1)</script>",
    "\ud800",
)


def damage(path, drawn):
    """Cut the file, change some of its bytes, one of its values or the order of its lines, or put another in place."""
    content, kind = bytearray(path.read_bytes()), drawn.randrange(5)
    if kind == 0:
        path.write_bytes(content[: drawn.randrange(len(content) + 1)])
    elif kind == 1:
        for _ in range(drawn.choice((1, 3, 30)) if content else 0):
            index = drawn.randrange(len(content))
            digit = chr(content[index]).isdigit() and drawn.random() < 0.5
            content[index] = ord(drawn.choice("0123456789")) if digit else drawn.randrange(256)
        path.write_bytes(content)
    elif kind == 2 and content:
        lines = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        chosen = drawn.randrange(len(lines))
        values = json.loads(lines[chosen])
        node, key = drawn.choice(list(places(values)))
        node[key] = drawn.choice(ODD_VALUES)
        if drawn.random() < 0.4:
            del node[key]
        lines[chosen] = json.dumps(values)
        path.write_text("\n".join(lines) + "\n")
    elif kind == 3:
        lines = path.read_bytes().splitlines(keepends=True)
        drawn.shuffle(lines)
        path.write_bytes(b"".join(lines + lines[:3]))
    else:
        path.unlink()
        drawn.choice((Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere"), lambda path: None))(path)


def places(node):
    for key in node if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from places(node[key])


def is_readable(place):
    """Return True if there still is a record that matches its digest."""
    try:
        RunRecord.read(place)
    except (RecordError, FileNotFoundError):
        return False
    return True


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def figures(directory):
    """Each arm's own figures, in comparison.json, which is strict JSON."""
    comparison = json.loads((directory / "comparison.json").read_text(), parse_constant=refuse_constant)
    arms = [arm for workload in comparison["workloads"] for arm in workload["arms"]]
    return {arm["arm"]: {key: arm[key] for key in FIGURES} for arm in arms}


@pytest.mark.parametrize("numbers", [range(8), pytest.param(range(8, 200), marks=pytest.mark.nightly)], ids=str)
def test_no_damage_breaks_the_report_or_changes_other_runs(numbers, copied, report):
    """Damages one to three files in every way, over and over; the same ones in each session."""

    @cache
    def figures_without(lost):
        """The figures of the comparison as if some of its runs had never been."""
        moved = {place: copied.directory.parent / f"lost_{place.name}" for place in lost}
        for place, aside in moved.items():
            place.rename(aside)
        assert report(copied.directory).code == 0
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
        ended = report(copied.directory)
        assert (ended.code, ended.err) == (0, ""), (number, damaged)
        now, lost = figures(copied.directory), {path.parent for path in damaged if not is_readable(path.parent)}
        assert "<script>alert" not in page_text(copied.directory)
        for path in damaged:
            if path.is_dir():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(whole[path])
        assert now == figures_without(frozenset(lost)), (number, damaged)
