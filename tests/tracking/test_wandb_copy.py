"""Runs of a W&B server as run directories: each is loaded once, and whatever is wrong is one sentence."""

import secrets
from dataclasses import replace

import pytest
from served import bits
from wandb_runs import record_run
from wandb_server import Fault, Sweep

from ampsweep.records import FILE_NAME, find_records, read_history
from ampsweep.records.sections import WandbFacts
from ampsweep.tracking.wandb import copy as copying
from ampsweep.tracking.wandb.copy import Copied, copy_runs
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.selection import Selection

ROWS = [
    {"step": 1, "train/loss": 4.0, "amp/skipped_steps": 0},
    {"step": 2, "train/loss": float("nan"), "amp/scale": float("inf")},
    {"step": 3, "train/loss": 0.1 + 0.2, "val/loss": 1e-300},
]


def of(record, arm, seed):
    identity = replace(record.identity, precision_mode=arm, seed=seed)
    return replace(record, identity=identity, arm=arm, config_hash=f"{arm}{seed}", run_id=f"{arm}{seed}")


class Project:
    """A project of its own on the server, with three runs, two of them of one group; and a copy of it."""

    def __init__(self, online, record, directory):
        self.server, self.directory = online.server, directory
        self.name = secrets.token_hex(4)
        self.server.recorded.requests.clear()
        for seed, group in enumerate(("a", "a", "b & c")):
            self.add(f"id{seed}", of(record, "amp_bf16", seed), groupName=group, sweep="s1")

    def add(self, id, record, rows=ROWS, **more):
        return record_run(self.server, id, record, rows, project=self.name, **more)

    def copy(self, selection=None, progress=lambda *_: None):
        return copy_runs(selection or Selection("team", self.name), self.directory, progress)

    def refused(self, selection=None):
        with pytest.raises(WandbError) as caught:
            self.copy(selection)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def records(self):
        return find_records(self.directory).records

    def seeds(self):
        return [there.identity.seed for _, there in self.records()]

    def loads(self):
        """Runs whose history has been asked for since the last call."""
        with self.server.lock:
            asked = [one.body.decode() for one in self.server.recorded.requests if one.operation == "RunParquetHistory"]
            self.server.recorded.requests.clear()
        return sorted(name for name in ("id0", "id1", "id2") for body in asked if f'"{name}"' in body)


@pytest.fixture
def project(online, record, tmp_path, monkeypatch):
    def with_server(function, *arguments, **limits):
        return online.address.call(function, *arguments, **limits)

    monkeypatch.setattr(copying, "with_server", with_server)  # no process of its own each time
    return Project(online, record, tmp_path / "copy")


def test_a_copy_has_record_and_rows_as_they_were_sent(project, record):
    project.add("id9", of(record, "amp_bf16", 0))
    seen = []
    assert project.copy(progress=lambda number, of: seen.append((number, of))) == Copied(4, 0, ())
    assert seen == [(number, 4) for number in range(5)]
    found = project.records()
    sent = [of(record, "amp_bf16", seed) for seed in (0, 1, 2, 0)]
    assert [replace(there, wandb=WandbFacts()) for _, there in found] == sent
    assert found[2][1].wandb.url == f"{project.server.url}/team/{project.name}/runs/id2"
    assert [there.wandb.group for _, there in found] == ["a", "a", "b & c", None]
    for place, _ in found:
        assert bits(read_history(place)) == bits(ROWS)
    assert [place.name for place, _ in found] == ["run_id0-id0", "run_id1-id1", "run_id2-id2", "run_id9-id9"]


def test_no_name_from_the_server_leads_out_of_the_copy(project, record, tmp_path):
    hostile = replace(of(record, "amp_bf16", 7), config_hash="/../../x", arm="../../up", run_id="../../y")
    for run_id in ("id7", "id8"):
        project.add(run_id, hostile)
    before = {path.name for path in tmp_path.iterdir()}
    assert project.copy().num_loaded == 5
    assert {path.name for path in tmp_path.iterdir()} == before | {"copy"}
    places = [path for path, _ in find_records(tmp_path).records]
    assert ({place.parent for place in places}, len(places)) == ({project.directory}, 5)
    assert project.copy().num_kept == 5


def test_rows_from_a_parquet_table_are_as_they_were_logged(project, record):
    """W&B moves long histories into Parquet files, where steps can be floats and what a row lacks is null."""
    stored = [{"val/loss": None, **row, "step": float(row["step"])} for row in ROWS]
    project.add("id0", of(record, "amp_bf16", 0), stored)
    project.add("twice", of(record, "fp32", 8), [*ROWS, ROWS[-1]])
    assert project.copy().skipped == ()
    for place, there in project.records():
        rows = read_history(place)
        assert bits(rows) == bits(ROWS), there.arm
        assert {type(row["step"]) for row in rows} == {int}


def test_only_what_has_changed_is_loaded_again(project, record):
    project.copy()
    assert project.loads() == ["id0", "id1", "id2"]
    changed = project.add("id1", replace(of(record, "amp_bf16", 1), status="oom"), ROWS[:1])
    changed.heartbeat_at = "2026-11-21T12:00:00.000Z"
    del project.server.recorded.runs["team", project.name, "id0"]
    assert project.copy() == Copied(1, 1, ())
    assert project.loads() == ["id1"]
    assert project.seeds() == [1, 2], "a run that the server has no more is gone"
    (place,) = [place for place, there in project.records() if there.status == "oom"]
    assert len(read_history(place)) == 1
    assert project.copy() == Copied(0, 2, ())
    assert project.loads() == []


def test_sweeps_and_groups_can_be_chosen(project, record):
    config = "method: grid\nparameters: {seed: {values: [0]}}\n"
    project.server.recorded.sweeps["team", project.name, "s1"] = Sweep("team", project.name, "s1", config)
    project.add("id3", of(record, "amp_bf16", 3), groupName="a")
    for sweep, groups, seeds in (
        ("s1", (), [0, 1, 2]),
        (None, ("a",), [0, 1, 3]),
        (None, ("a", "b & c"), [0, 1, 2, 3]),
        ("s1", ("b & c",), [2]),
    ):
        project.copy(Selection("team", project.name, sweep, groups))
        assert project.seeds() == seeds


def test_runs_that_cannot_be_compared_are_named_and_left_out(project, record):
    project.add("differs", of(record, "fp32", 9), [*ROWS, {**ROWS[-1], "train/loss": 9.0}])
    project.add("foreign", None, [{"loss": 1.0}])
    project.add("newer", replace(record, schema=99))
    project.add("table", None, [], jobType="comparison")  # no training, and not missed
    copied = project.copy()
    assert (copied.num_loaded, len(project.records())) == (3, 3)
    assert dict(copied.skipped) == {
        "run differs": "has two rows of step 3 that differ",
        "run foreign": "has no record.json, as runs of this suite have",
        "run newer": "is a run record of schema 99; this version of ampsweep reads schema 1",
    }


def test_a_busy_server_is_retried_and_a_failed_copy_resumed(project):
    with project.server.failing(Fault("/id2/record.json", status=404)):
        assert project.refused().startswith(f"wandb://team/{project.name}: ")
    had = set(project.loads())
    with project.server.failing(Fault("RunFiles|HistoryKeys", status=429, times=1)):
        project.copy()
    assert set(project.loads()) | had == {"id0", "id1", "id2"}
    assert project.copy() == Copied(0, 3, ())


def test_a_server_that_does_not_answer_is_given_up(project, monkeypatch):
    monkeypatch.setattr(copying, "_LISTING_S", 1.0)
    with project.server.failing(Fault("RunParquetHistory", status=500)):
        assert project.refused() == f"wandb://team/{project.name}: not done in 1 s"


def test_a_missing_project_sweep_or_group_is_an_error(project):
    name = project.name
    for selection, sentence in {
        Selection("team", "none"): "wandb://team/none: no such project, or not for this API key",
        Selection("team", name, "gone"): f"wandb://team/{name}/gone: no such sweep; it may have been deleted",
        Selection("team", name, groups=("x",)): f"wandb://team/{name}?group=x: there are no runs in it",
    }.items():
        assert project.refused(selection) == sentence
    record_run(project.server, "other", None, project=f"{name}-others")
    assert project.refused(Selection("team", f"{name}-others")).startswith(
        f"wandb://team/{name}-others: none of its runs is of this suite; --arm-key KEY compares others"
    )
    project.server.key = "9" * 40
    assert "user is not logged in" in project.refused()


def test_runs_that_were_trained_here_are_not_touched(project, record):
    own = project.directory / "own"
    own.mkdir(parents=True)
    record.write(own)
    assert "holds runs of its own" in project.refused()
    assert [*project.directory.rglob("*")] == [own, own / FILE_NAME]
