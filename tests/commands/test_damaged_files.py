"""Files that are damaged, of another version or not there: each is named once, and all the rest is used."""

import json
import random
import re
import shutil
from functools import cache

import pytest
from command_line import all_runs
from mutations import MUTATIONS, restore

from ampsweep.commands.main import main
from ampsweep.record import RecordError, RunRecord

NUM_MUTATIONS = 200
FIGURES = ("step_ms", "peak_memory_bytes", "val_loss", "val_accuracy", "skipped_steps")


@pytest.fixture
def report(capsys):
    """Exit code, what the command prints, and the sentence on stderr."""

    def report(*arguments):
        code = main(["report", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return report


def run_of(swept, arm, seed=0):
    (run,) = [one for one in all_runs(swept.directory) if (one.record.arm, one.record.identity.seed) == (arm, seed)]
    return run


def change(run, **changes):
    """Change values of a record at dotted keys, as of a version that wrote no digest."""
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


def test_each_trouble_is_named_once_everywhere(copied, report):
    arms = {(arm, seed): run_of(copied, arm, seed) for arm in ("fp32", "amp_bf16", "tf32") for seed in (0, 1)}
    name = {key: run.directory.name for key, run in arms.items()}
    change(arms["amp_bf16", 1], schema=99)
    change(arms["tf32", 0], status="<b>0</b>")
    (arms["tf32", 1].directory / "run.json").write_text('{"schema": 1,')
    history = arms["fp32", 0].directory / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    history.write_bytes(b"".join([lines[0].encode(), b"\xff\n", *(line.encode() for line in lines[1:])]))
    (arms["fp32", 1].directory / "history.jsonl").unlink()
    expected = {
        f"{name['amp_bf16', 1]}/run.json": "is a run record of schema 99; this version of ampsweep reads schema 1",
        f"{name['tf32', 0]}/run.json": "is not a run record: status: invalid enum value '<b>0</b>'",
        f"{name['tf32', 1]}/run.json": "is not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 14 (char 13)",
        f"{name['fp32', 0]}/history.jsonl": "is damaged: line 2 is not JSON",
        f"{name['fp32', 1]}/history.jsonl": "is not there",
    }
    code, out, err = report(copied.directory)
    assert (code, err) == (0, "")
    page = page_text(copied.directory)
    markdown = (copied.directory / "comparison.md").read_text(encoding="utf-8").replace("\\", "")
    for path, reason in expected.items():
        assert markdown.count(f"| {path} {reason} |") == 1
        shown = reason.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;")
        assert page.count(f"{path} {shown}") == 1
    omissions = json.loads((copied.directory / "comparison.json").read_text())["file_problems"]
    assert {one["path"]: one["reason"] for one in omissions} == expected
    assert len(omissions) == len(expected)
    assert "0 of 2 pairs completed" not in out
    assert "1 of 2 pairs completed" in " ".join(out.split()), "what is whole is compared"


def test_a_changed_digit_is_told_and_left_out(copied, report):
    record, rows = run_of(copied, "amp_bf16", 1).directory / "run.json", run_of(copied, "fp32", 0).directory
    record.write_text(re.sub(r'"val/loss": \d', '"val/loss": 7', record.read_text()))
    history = rows / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    history.write_text("".join([*lines[:-1], lines[-1].replace('"train/loss": ', '"train/loss": 1')]))
    code, out, err = report(copied.directory)
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    assert (said.count("no history"), said.count("not readable")) == (1, 1)
    omissions = json.loads((copied.directory / "comparison.json").read_text())["file_problems"]
    assert {one["sentence"] for one in omissions} == {
        f"{record.parent.name}/run.json has been changed since it was written: it does not match its digest",
        f"{rows.name}/history.jsonl has been changed since its run ended: it does not match its digest",
    }
    assert sorted(one["name"] for one in omissions) == ["no history", "not readable"]


def test_where_nothing_can_be_read_there_is_one_sentence(copied, report):
    for run in all_runs(copied.directory):
        (run.directory / "run.json").write_text("")
    before = (copied.directory / "comparison.json").read_bytes()
    code, out, err = report(copied.directory)
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no record that can be read: ")
    assert err.endswith("run.json is not JSON: Expecting value: line 1 column 1 (char 0) (nor can 5 more of them)\n")
    assert err.count("\n") == 1
    assert (copied.directory / "comparison.json").read_bytes() == before


def test_a_baseline_that_is_not_there_is_refused_or_said_once(copied, report):
    code, out, err = report(copied.directory, "--baseline", "fp33")
    assert (code, out) == (2, "")
    assert err == "error: --baseline fp33: no run is of this arm; there are amp_bf16, fp32, tf32\n"
    for seed in (0, 1):
        shutil.rmtree(run_of(copied, "fp32", seed).directory)
    code, out, _ = report(copied.directory)
    assert code == 0
    assert " ".join(out.split()).count("There is no fp32 run to compare with") == 1
    assert "amp_bf16" in out


def test_runs_of_several_devices_are_said_once_and_not_mixed(copied, report):
    change(run_of(copied, "fp32", 1), **{"identity.device_name": "a GPU", "pair_key": "another"})
    code, out, _ = report(copied.directory)
    assert code == 0
    assert " ".join(out.split()).count("Runs of 2 devices are compared only with those of the same: ") == 1


def test_a_record_without_report_settings_uses_the_defaults(copied, report):
    for run in all_runs(copied.directory):
        change(run, config={})
    code, out, _ = report(copied.directory)
    assert code == 0
    assert "compared with fp32" in out


def test_markup_in_bad_values_stays_text(copied, report):
    hostile = "<script>alert(1)</script>"
    change(run_of(copied, "fp32"), **{"identity.seed": hostile})
    change(run_of(copied, "amp_bf16"), arm=hostile, summary={hostile: hostile}, error=hostile, cut_short=hostile)
    code, _, _ = report(copied.directory)
    assert code == 0
    assert hostile not in page_text(copied.directory)


def is_readable(place):
    """Whether there is a record still; then it says what it said, as its digest tells."""
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


def figures_without(copied, report):
    """The figures of the comparison as if some of its runs had never been."""

    @cache
    def of_the_rest(lost):
        places = {place: copied.directory.parent / f"lost_{place.name}" for place in lost}
        for place, aside in places.items():
            place.rename(aside)
        assert report(copied.directory)[0] == 0
        found = figures(copied.directory)
        for place, aside in places.items():
            aside.rename(place)
        return found

    return lambda lost: of_the_rest(frozenset(lost))


@pytest.mark.slow
def test_no_damage_breaks_the_report_or_changes_other_runs(copied, report):
    """Damages one to three files in every way there is, over and over; what is drawn is the same in each test run."""
    assert report(copied.directory)[0] == 0
    whole = {path: path.read_bytes() for path in sorted(copied.directory.glob("*/*.json*"))}
    refused, without = 0, figures_without(copied, report)
    for number in range(NUM_MUTATIONS):
        drawn = random.Random(number)
        damaged = drawn.sample(list(whole), drawn.choice((1, 1, 1, 2, 3)))
        for path in damaged:
            drawn.choice(MUTATIONS)(path, drawn)
        code, _, err = report(copied.directory)
        assert (code, err) == (0, "") or (code == 2 and err.count("\n") == 1), (number, damaged)
        refused += code
        now, lost = figures(copied.directory), {path.parent for path in damaged if not is_readable(path.parent)}
        assert "<script>alert" not in page_text(copied.directory)
        for path in damaged:
            restore(path, whole[path])
        assert now == without(lost), (number, damaged)
    assert refused == 0, "there is always a record that can be read"
