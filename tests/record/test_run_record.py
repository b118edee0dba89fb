"""What `run.json` may hold: everything else is refused with a reason, and never read as something that it is not."""

import json
import math
import os
import sys
from pathlib import Path

import pytest
from identities import identity

from ampsweep.record import RecordError, RunRecord, find_records
from ampsweep.record.parts import Attempt, MemoryUse, ModeProof, WandbFacts

RECORD = RunRecord(
    run_id="a1",
    arm="fp32",
    pair_key="k",
    config_hash="c",
    identity=identity(),
    status="completed",
    config={"report": {"baseline": "fp32", "margin_pct": 1.0}, "trainer": {"warmup_steps": 10}, "model": {"width": 8}},
    environment={"packages": {"torch": "2.13.0"}, "gpus": [None, {"name": "a GPU"}]},
    proof=ModeProof(contradictions=[], flops={"float32": 10}, flags={"tf32": False}),
    summary={"val/loss": 2.0},
    attempts=[Attempt(started_at="2026-11-21T10:00:00+00:00", host="here", pid=7, notes=[])],
)
NAN = "<NaN>"


def written(directory: Path, **changes: object) -> Path:
    """The record with values at dotted keys changed; `...` deletes a key."""
    content = RECORD.as_json()
    for dotted, value in changes.items():
        *parents, key = dotted.split(".")
        node = content
        for parent in parents:
            node = node[parent]
        if value is ...:
            del node[key]
        else:
            node[key] = value
    (directory / "run.json").write_text(json.dumps(content).replace(f'"{NAN}"', "NaN"))
    return directory


def reason(directory: Path) -> str:
    with pytest.raises(RecordError) as caught:
        RunRecord.read(directory)
    assert caught.value.path == directory / "run.json"
    assert str(caught.value) == f"{caught.value.path} {caught.value.reason}"
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_a_record_is_read_as_it_was_written(tmp_path):
    RECORD.write(tmp_path)
    assert RunRecord.read(tmp_path) == RECORD


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b'{"schema": 1, "run_', "is cut off"),
        (
            b'{"schema": 1,, "run_id": 2}',
            "is not JSON: Expecting property name enclosed in double quotes in line 1",
        ),
        (b"\x80\x00{}", "is not UTF-8 text: invalid start byte at byte 0"),
        (b"[1, 2]", "is not a run record: it names no schema"),
        (b'{"schema": 1, "identity": {}', "is cut off"),
        (b'"}"', "is not a run record: it names no schema"),
        (b"{}", "is not a run record: it names no schema"),
        (b'{"schema": "1"}', "is not a run record: it names no schema"),
        (b'{"schema": true}', "is not a run record: it names no schema"),
        (b'{"schema": 99}', "is of a newer version of ampsweep (record schema 99; this one reads 1)"),
        (b'{"schema": 0}', "has record schema 0; this version reads schema 1"),
        (b'{"schema": 1}', "is not a run record: run_id is missing"),
        (b'{"schema": ' + b"1" * 5000 + b"}", "is not JSON of a record: Exceeds the limit"),
        (b'{"schema": ' + b"[" * 100_000 + b"]}", "is not JSON of a record: maximum recursion depth exceeded"),
    ],
)
def test_what_is_no_record_is_refused_with_its_reason(tmp_path, content, why):
    (tmp_path / "run.json").write_bytes(content)
    assert reason(tmp_path).startswith(why)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("summary", [1], "summary is a list, not a mapping"),
        ("identity", None, "identity is null, not a mapping"),
        ("identity.seed", ..., "identity.seed is missing"),
        ("identity.seed", "0", "identity.seed is '0', not a number"),
        ("identity.seed", True, "identity.seed is True, not a number"),
        ("identity.seed", 1.5, "identity.seed is 1.5, not a number"),
        ("identity.seed", 2**63, "identity.seed is an integer of more than 64 bits"),
        ("identity.lr", NAN, "identity.lr is nan, not a finite number"),
        ("identity.lr", "x" * 100, "identity.lr is a text, not a number"),
        ("identity.model", {"a": 1}, "identity.model is a mapping, not a text"),
        ("identity.compile", 0, "identity.compile is 0, not a truth value"),
        ("status", "done", "status is 'done', none of completed, oom, diverged, unsupported, interrupted, failed"),
        ("kind", ["measured"], "kind is a list, none of measured, predicted"),
        ("error", 3, "error is 3, not a text"),
        ("config.report", "fp32", "config.report is 'fp32', not a mapping"),
        ("config.report.margin_pct", None, "config.report.margin_pct is null, not a number"),
        ("config.trainer.warmup_steps", "10", "config.trainer.warmup_steps is '10', not a number"),
        ("config.model.width", NAN, "config.model.width is nan, not a finite number"),
        ("environment", "linux", "environment is 'linux', not a mapping"),
        ("environment.gpus", [{"memory": [0, NAN]}], "environment.gpus[0].memory[1] is nan, not a finite number"),
        ("proof.contradictions", "none", "proof.contradictions is 'none', not a list"),
        ("proof.contradictions", ["a", 2], "proof.contradictions[1] is 2, not a text"),
        ("proof.flops", {"float32": None}, "proof.flops.float32 is null, not a number"),
        ("memory", {"peak": [1]}, "memory.peak is a list, not a mapping"),
        ("prediction", {"peak": {"other": "1"}}, "prediction.peak.other is '1', not a number"),
        ("attempts", [{"pid": "7"}], "attempts[0].pid is '7', not a number"),
        ("wandb", {"url": 1}, "wandb.url is 1, not a text"),
    ],
)
def test_a_value_of_another_type_is_named_by_its_key(tmp_path, key, value, why):
    assert reason(written(tmp_path, **{key: value})) == f"is not a run record: {why}"


def test_what_is_nested_beyond_reason_is_refused(tmp_path):
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    assert reason(written(tmp_path, environment={"deep": deep})).endswith("is nested more than 32 deep")


def test_keys_of_a_later_version_of_this_schema_are_passed_over(tmp_path):
    assert RunRecord.read(written(tmp_path, colour="red", **{"identity.rank": 3})) == RECORD


def test_parts_may_be_missing_and_whole_numbers_stand_for_others(tmp_path):
    record = RunRecord.read(written(tmp_path, memory=..., wandb=..., prediction=..., **{"identity.lr": 1}))
    assert (record.memory, record.wandb, record.prediction, record.identity.lr) == (MemoryUse(), WandbFacts(), None, 1)


def test_a_record_that_is_rewritten_says_what_it_said(tmp_path):
    """Absent keys stay absent, nulls stay null, and so do keys that this version does not know."""
    parts = {
        "proof": {"flops": {}, "by": "hand"},
        "memory": {"kept": {}},
        "contamination": {"verdict": "clean", "reasons": [], "busy_before": None, "figures": {"window_s": 1}},
        "prediction": {"target": "cpu", "error_pct": None},
        "wandb": {"url": None, "colour": [1, None]},
        "attempts": [{"pid": 7, "rank": 0}, {}],
    }
    path = written(tmp_path, **parts) / "run.json"
    before = json.loads(path.read_text())
    RunRecord.read(tmp_path).write(tmp_path)
    after = json.loads(path.read_text())
    del after["digest"]
    assert after == before


def test_what_is_known_takes_the_place_of_what_was_null(tmp_path):
    record = RunRecord.read(written(tmp_path, wandb={"url": None, "id": "a"}))
    record.wandb |= WandbFacts(url="https://there", mode="online")
    assert record.as_json()["wandb"] == {"id": "a", "mode": "online", "url": "https://there"}


def test_a_figure_that_is_none_is_left_to_those_who_take_it(tmp_path):
    """The report tells which figure of which run is left out; the others count."""
    record = RunRecord.read(written(tmp_path, summary={"val/loss": NAN, "perf/step_ms": "fast", "a": 2.0}))
    assert math.isnan(record.summary["val/loss"])
    assert (record.summary["perf/step_ms"], record.summary["a"]) == ("fast", 2.0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.mkdir, "is a directory"),
        (lambda path: path.symlink_to("nowhere"), "is not a file"),
        (lambda path: path.symlink_to(path), "is not a file"),
        pytest.param(
            os.mkfifo if hasattr(os, "mkfifo") else None,
            "is not a file",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in directories"),
        ),
    ],
)
def test_what_is_no_file_is_not_waited_for(tmp_path, make, why):
    make(tmp_path / "run.json")
    assert reason(tmp_path) == why


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 0)() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path):
    closed = written(tmp_path / "closed")
    (tmp_path / "run.json").touch(mode=0o000)
    closed.chmod(0o000)
    found = find_records(tmp_path)
    closed.chmod(0o700)
    assert [str(error) for error in found.unreadable] == [
        f"{closed} cannot be read: Permission denied",
        f"{tmp_path / 'run.json'} cannot be read: Permission denied",
    ]


def test_no_record_is_no_error_of_a_record(tmp_path):
    with pytest.raises(FileNotFoundError):
        RunRecord.read(tmp_path)


def test_all_that_can_be_read_is_found_in_the_order_of_paths(tmp_path):
    for name in ("b", "a/nested", "c"):
        (tmp_path / name).mkdir(parents=True)
        RECORD.write(tmp_path / name)
    (tmp_path / "c/run.json").write_text("{")
    (tmp_path / "run.json").mkdir()
    found = find_records(tmp_path)
    assert [path for path, _ in found.records] == [tmp_path / "a/nested", tmp_path / "b"]
    assert [error.path for error in found.unreadable] == [tmp_path / "run.json", tmp_path / "c/run.json"]
    assert [path for path, _ in find_records(tmp_path, mentioning="c").records] == [path for path, _ in found.records]
    assert find_records(tmp_path, mentioning="nowhere in it").records == []
