"""Runs of a W&B server as run directories: each is loaded once, and whatever is wrong is one sentence."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wandb_runs import record_run
from wandb_server import Fault, WandbServer

from ampsweep.record import FILE_NAME, RunRecord, find_records, read_history
from ampsweep.record.parts import WandbFacts
from ampsweep.tracking.wandb.copy import Copied, copy_runs
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.selection import Selection

ALL = Selection("team", "mine")
ROWS: list[dict[str, Any]] = [
    {"step": 1, "train/loss": 4.0, "amp/skipped_steps": 0},
    {"step": 2, "train/loss": float("nan"), "amp/scale": float("inf")},
    {"step": 3, "train/loss": 0.1 + 0.2, "val/loss": 1e-300},
]

Copy = Callable[..., Copied]


def of(record: RunRecord, arm: str, seed: int) -> RunRecord:
    identity = replace(record.identity, precision_mode=arm, seed=seed)
    return replace(record, identity=identity, arm=arm, config_hash=f"{arm}{seed}", run_id=f"{arm}{seed}")


def bits(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [{key: float(value).hex() for key, value in row.items()} for row in rows]


@pytest.fixture
def server(wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch, record: RunRecord) -> WandbServer:
    """Three runs, two of them of one group."""
    for name, value in wandb_server.environment.items():
        monkeypatch.setenv(name, value)
    for seed, group in enumerate(("a", "a", "b & c")):
        record_run(wandb_server, f"id{seed}", of(record, "amp_bf16", seed), ROWS, groupName=group, sweep="s1")
    return wandb_server


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    def copy(selection: Selection = ALL, progress: Callable[[int, int], None] = lambda number, of: None) -> Copied:
        return copy_runs(selection, tmp_path / "copy", progress)

    return copy


@pytest.fixture
def refused(copy: Copy) -> Callable[..., str]:
    """The sentence about a selection that cannot be had."""

    def refused(selection: Selection = ALL) -> str:
        with pytest.raises(WandbError) as caught:
            copy(selection)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused


def loads(server: WandbServer) -> list[str]:
    """Runs whose history has been asked for, in the order of their names."""
    with server.lock:
        asked = [one.body.decode() for one in server.recorded.requests if one.operation == "RunParquetHistory"]
        server.recorded.requests.clear()
    return sorted(name for name in ("id0", "id1", "id2") for body in asked if f'"{name}"' in body)


def test_a_copy_has_record_and_rows_as_they_were_sent(server, copy, record, tmp_path):
    seen: list[tuple[int, int]] = []
    assert copy(progress=lambda number, of: seen.append((number, of))) == Copied(3, 0, ())
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    found = find_records(tmp_path / "copy").records
    assert [replace(there, wandb=WandbFacts()) for _, there in found] == [
        of(record, "amp_bf16", seed) for seed in range(3)
    ]
    assert found[2][1].wandb.url == f"{server.url}/team/mine/runs/id2", "sent offline, it would name a directory"
    assert [there.wandb.group for _, there in found] == ["a", "a", "b & c"]
    for place, _ in found:
        assert bits(read_history(place)) == bits(ROWS)
    assert [place.name for place, _ in found] == [f"run_id{seed}-id{seed}" for seed in range(3)]


def test_no_name_from_the_server_leads_out_of_the_copy(server, copy, record, tmp_path):
    hostile = replace(of(record, "amp_bf16", 7), config_hash="/../../x", arm="../../up", run_id="../../y")
    for run_id in ("id7", "id8"):
        record_run(server, run_id, hostile, ROWS)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert copy().num_loaded == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "copy"])
    places = [path for path, _ in find_records(tmp_path).records]
    assert {place.parent for place in places} == {tmp_path / "copy"}
    assert len(places) == 5
    assert copy().num_kept == 5


def test_rows_stored_as_a_table_are_as_they_were_logged(server, copy, record, tmp_path):
    """W&B moves long histories into Parquet files, where steps can be floats and what a row lacks is null."""
    stored = [{"step": float(row["step"]), "val/loss": row.get("val/loss"), **row} for row in ROWS]
    record_run(server, "id0", of(record, "amp_bf16", 0), [row | {"step": float(row["step"])} for row in stored])
    copy()
    rows = read_history(find_records(tmp_path / "copy").records[0][0])
    assert bits(rows) == bits(ROWS)
    assert {type(row["step"]) for row in rows} == {int}


def test_only_what_has_changed_is_loaded_again(server, copy, record, tmp_path):
    copy()
    assert loads(server) == ["id0", "id1", "id2"]
    assert copy() == Copied(0, 3, ())
    assert loads(server) == []
    changed = record_run(server, "id1", replace(of(record, "amp_bf16", 1), status="oom"), ROWS[:1])
    changed.heartbeat_at = "2026-11-21T12:00:00.000Z"
    assert copy() == Copied(1, 2, ())
    assert loads(server) == ["id1"]
    (place,) = [place for place, there in find_records(tmp_path / "copy").records if there.status == "oom"]
    assert len(read_history(place)) == 1


def test_a_run_gone_from_the_server_is_gone_from_the_copy(server, copy, tmp_path):
    copy()
    del server.recorded.runs["team", "mine", "id0"]
    copy()
    assert [there.identity.seed for _, there in find_records(tmp_path / "copy").records] == [1, 2]


def test_a_point_that_was_run_twice_is_there_twice(server, copy, record, tmp_path):
    record_run(server, "id9", of(record, "amp_bf16", 0), ROWS)
    copy()
    names = [place.name for place, there in find_records(tmp_path / "copy").records if there.identity.seed == 0]
    assert names == ["run_id0-id0", "run_id9-id9"]


@pytest.mark.parametrize(
    ("selection", "seeds"),
    [
        (Selection("team", "mine", "s1"), [0, 1, 2]),
        (Selection("team", "mine", groups=("a",)), [0, 1]),
        (Selection("team", "mine", groups=("a", "b & c")), [0, 1, 2]),
        (Selection("team", "mine", "s1", ("b & c",)), [2]),
    ],
    ids=str,
)
def test_sweeps_and_groups_can_be_chosen(server, copy, tmp_path, selection, seeds):
    server.recorded.sweeps["team", "mine", "s1"] = sweep_of("s1")
    copy(selection)
    assert [there.identity.seed for _, there in find_records(tmp_path / "copy").records] == seeds


def sweep_of(name: str) -> Any:
    from wandb_server import Sweep

    return Sweep("team", "mine", name, "method: grid\nparameters: {seed: {values: [0]}}\n")


def test_runs_of_others_are_named_and_left_out(server, copy, record, tmp_path):
    record_run(server, "other", None, [{"loss": 1.0}])
    record_run(server, "newer", replace(record, schema=99), ROWS)
    record_run(server, "table", None, jobType="comparison")
    copied = copy()
    assert copied.num_loaded == 3
    assert dict(copied.skipped).keys() == {"run other", "run newer"}, "a comparison is no training, and not missed"
    assert dict(copied.skipped)["run other"] == "has no record.json, as runs of this suite have"
    assert "schema 99" in dict(copied.skipped)["run newer"]
    assert len(find_records(tmp_path / "copy").records) == 3


def test_a_row_that_is_there_twice_counts_once(server, copy, record, tmp_path):
    record_run(server, "twice", of(record, "fp32", 0), [*ROWS, ROWS[-1]])
    record_run(server, "other", of(record, "fp32", 1), [*ROWS, {**ROWS[-1], "train/loss": 9.0}])
    copied = copy()
    assert dict(copied.skipped) == {"run other": f"has two rows of step {ROWS[-1]['step']} that differ"}
    (path,) = [path for path, there in find_records(tmp_path / "copy").records if there.arm == "fp32"]
    assert bits(read_history(path)) == bits(ROWS)


def test_a_server_that_is_busy_is_asked_again(server, copy):
    with server.failing(Fault("RunFiles|HistoryKeys", status=429, times=3)):
        assert copy().num_loaded == 3


def test_after_a_failure_the_rest_is_loaded(server, copy, refused):
    with server.failing(Fault("/id2/record.json", status=404)):
        assert refused().startswith("wandb://team/mine: ")
    had = set(loads(server))
    copy()
    assert set(loads(server)) | had == {"id0", "id1", "id2"}
    assert copy() == Copied(0, 3, ())


def test_a_server_that_stops_answering_is_given_up(server, refused, monkeypatch):
    monkeypatch.setattr("ampsweep.tracking.wandb.copy._LISTING_S", 1.0)
    with server.failing(Fault("RunParquetHistory", status=500)):
        assert refused() == "wandb://team/mine: not done in 1 s"


def test_an_unreachable_server_is_given_up(server, refused):
    server.refuse()
    assert refused().startswith(f"wandb://team/mine: the W&B server {server.url} cannot be reached: ")


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection("team", "none"), "wandb://team/none: no such project, or not for this API key"),
        (Selection("nobody", "mine"), "wandb://nobody/mine: no such project, or not for this API key"),
        (Selection("team", "mine", "gone"), "wandb://team/mine/gone: no such sweep; it may have been deleted"),
        (Selection("team", "mine", groups=("x",)), "wandb://team/mine?group=x: there are no runs in it"),
    ],
    ids=str,
)
def test_what_is_not_there_is_said(server, refused, selection, said):
    assert refused(selection) == said


def test_a_wrong_key_is_said(server, refused, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "9" * 40)
    assert "user is not logged in" in refused()
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert "API key must have 40+ characters" in refused()
    monkeypatch.delenv("WANDB_API_KEY")
    assert "not logged in (`wandb login` or WANDB_API_KEY)" in refused()


def test_a_project_of_other_tools_is_said(wandb_server, server, refused):
    record_run(server, "other", None, project="others")
    said = refused(Selection("team", "others"))
    assert said.startswith("wandb://team/others: none of its runs can be compared (1; run other has no record.json")


def test_runs_that_were_trained_here_are_not_touched(server, refused, record, tmp_path):
    own = tmp_path / "copy" / "own"
    own.mkdir(parents=True)
    record.write(own)
    assert "holds runs of its own" in refused()
    assert Counter(path.name for path in (tmp_path / "copy").rglob("*")) == {"own": 1, FILE_NAME: 1}
