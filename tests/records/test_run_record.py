import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from identities import identity

from ampsweep.config.schema import Config
from ampsweep.records import RecordError, RunRecord, find_records
from ampsweep.records.sections import Attempt, Contamination, MemoryUse, ModeProof, StepPrediction, WandbFacts
from ampsweep.run.ending import add_prediction
from ampsweep.run.request import RunRequest

RECORD = RunRecord(
    run_id="a1",
    arm="fp32",
    pair_key="k",
    config_hash="c",
    status="completed",
    identity=identity(),
    config={"report": {"baseline": "fp32", "margin_pct": 1.0}, "trainer": {"warmup_steps": 10}, "model": {"width": 8}},
    environment={"packages": {"torch": "2.13.0"}, "gpus": [None, {"name": "a GPU"}]},
    proof=ModeProof(flops={"float32": 10}, flags={"tf32": False}),
    summary={"val/loss": 2.0},
    attempts=[Attempt(started_at="2026-11-21T10:00:00+00:00", host="here", pid=7, notes=[])],
)


def written(directory: Path, **changes: object) -> Path:
    """The record with values at dotted keys changed; `...` deletes a key."""
    content = RECORD.as_json()
    for dotted, value in changes.items():
        *parents, key = dotted.split(".")
        node = content[parents[0]] if parents else content
        node[key] = value
        if value is ...:
            del node[key]
    (directory / "run.json").write_text(json.dumps(content))
    return directory


def reason(directory: Path) -> str:
    with pytest.raises(RecordError) as caught:
        RunRecord.read(directory)
    assert caught.value.path == directory / "run.json"
    assert str(caught.value) == f"{caught.value.path} {caught.value.reason}"
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_content_that_is_no_record_is_refused_with_its_reason(tmp_path):
    for content, why in (
        (b"", "is not JSON: Expecting value"),
        (b"\x80\x00{}", "is not JSON: 'utf-8' codec can't decode byte 0x80"),
        (b'{"schema": true}', "is not a run record: it names no schema"),
        (b'{"schema": 99}', "is a run record of schema 99; this version of ampsweep reads schema 1"),
        (b'{"schema": 1}', "is not a run record: object missing required field run_id"),
        (b'{"schema": 1, "identity": {"lr": NaN}}', "is not JSON: it holds NaN, which is no finite number"),
        (b'{"schema": ' + b"1" * 5000 + b"}", "is not JSON: Exceeds the limit"),
        (b'{"schema": ' + b"[" * 100_000 + b"]}", "is not JSON: maximum recursion depth exceeded"),
    ):
        (tmp_path / "run.json").write_bytes(content)
        assert reason(tmp_path).startswith(why)


def test_a_value_of_another_type_is_named_by_its_key(tmp_path):
    for key, value, why in (
        ("identity.seed", ..., "identity: object missing required field seed"),
        ("identity.seed", True, "identity.seed: expected int, got bool"),
        ("status", "done", "status: invalid enum value 'done'"),
        ("kind", ["measured"], "kind: expected str, got array"),
        ("proof.idle_fp32_modules", ["a", 2], "proof.idle_fp32_modules[1]: expected str, got int"),
        ("proof.flops", {"float32": None}, "proof.flops[...]: expected int, got null"),
        ("attempts", [{"pid": "7"}], "attempts[0].pid: expected int | null, got str"),
    ):
        assert reason(written(tmp_path, **{key: value})) == f"is not a run record: {why}"


def test_several_threads_may_read_the_first_records_of_a_process(tmp_path):
    directory = written(tmp_path)
    script = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; from pathlib import Path\n"
        "from ampsweep.records import RunRecord\n"
        "sys.setswitchinterval(1e-5)\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        f"    print(len(list(pool.map(RunRecord.read, [Path({str(directory)!r})] * 64))))"
    )
    for _ in range(4):  # without a lock three of five processes crash
        assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "64\n"


def test_a_record_is_read_as_it_was_written(tmp_path):
    for record in (RECORD, replace(RECORD, config={"data": {"path": os.fsdecode(b"caf\xe9")}})):
        record.write(tmp_path)
        assert RunRecord.read(tmp_path) == record
    later = written(tmp_path, colour="red", **{"identity.rank": 3})
    assert RunRecord.read(later) == RECORD, "keys of a later version of this schema are ignored"
    record = RunRecord.read(written(tmp_path, memory=..., wandb=..., prediction=..., **{"identity.lr": 1}))
    assert (record.memory, record.wandb, record.prediction, record.identity.lr) == (MemoryUse(), WandbFacts(), None, 1)
    record = RunRecord.read(written(tmp_path, summary={"val/loss": None, "perf/step_ms": "fast", "a": 2.0}))
    assert record.summary == {"val/loss": None, "perf/step_ms": "fast", "a": 2.0}, "whoever uses a figure checks it"


def test_absent_facts_stay_absent_and_known_ones_replace_null(tmp_path):
    parts = {"proof": {"flops": {}}, "memory": {"kept": {}}, "contamination": {"verdict": "clean", "reasons": []}}
    parts |= {"prediction": {"target": "cpu"}, "wandb": {"url": "https://there"}, "attempts": [{"pid": 7}, {}]}
    path = written(tmp_path, **parts) / "run.json"
    before = json.loads(path.read_text())
    RunRecord.read(tmp_path).write(tmp_path)
    after = json.loads(path.read_text())
    del after["digest"]
    assert after == before
    record = RunRecord.read(written(tmp_path, wandb={"url": None, "id": "a"}))
    record.wandb |= WandbFacts(url="https://there", mode="online")
    assert record.as_json()["wandb"] == {"id": "a", "mode": "online", "url": "https://there"}


def test_what_is_no_file_is_not_waited_for(tmp_path):
    path = tmp_path / "run.json"
    path.mkdir()
    assert reason(tmp_path) == "is a directory"
    path.rmdir()
    makers = [lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path), getattr(os, "mkfifo", None)]
    for make in filter(None, makers):
        make(path)
        assert reason(tmp_path) == "is not a file"
        path.unlink()
    with pytest.raises(FileNotFoundError):
        RunRecord.read(tmp_path)


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


def test_a_prediction_above_the_measured_has_a_positive_error():
    request = RunRequest(Config(), Path(), prediction=StepPrediction(peak_bytes=1010, step_ms=11.0))
    clean, disturbed = (Contamination(verdict=verdict) for verdict in ("unknown", "contaminated"))
    for compile, contamination, error_pct, step_error_pct in (
        (False, clean, 1.0, 10.0),
        (False, disturbed, 1.0, None),
        (True, clean, None, 10.0),  # the bytes of a compiled run are predicted uncompiled
    ):
        measured = {"memory": MemoryUse(peak_bytes=1000), "summary": {"perf/step_ms": 10.0}}
        record = replace(RECORD, identity=identity(compile=compile), contamination=contamination, **measured)
        add_prediction(record, request, torch.device("cpu"))
        found = record.prediction
        assert (found.error_pct, found.step_error_pct) == (error_pct, step_error_pct)
        assert (found.measured_ms is None) == (step_error_pct is None)
