"""Images and tables that rows name reach W&B with their row: from a training, or later by `complete_runs`."""

import json

import numpy as np
import pytest
from served import train
from wandb_file import read_wandb_file

from ampsweep.recorder.media import write_media
from ampsweep.records import RunRecord, read_history
from ampsweep.tracking.wandb.copy import copy_runs
from ampsweep.tracking.wandb.selection import Selection

pytest.importorskip("PIL", reason="Pillow is not installed")
ONLINE = {"mode": "online"}


def rows_with_media(directory):
    """Rows of two evaluations, each with two images and a table."""
    images, rows = [np.full((4, 5), 0.25), np.full((4, 5, 3), 200, dtype=np.uint8)], {}
    for step in (10, 20):
        table = [{"word": "cat", "chance": step / 100}, {"word": "dog"}]
        rows[step] = {"val/loss": 0.5, **write_media(directory, {"samples": images, "errors": table}, step)}
    return rows


def sent(run):
    """What a row on the server has in place of its files, by step and key."""
    return {
        row["step"]: {key.removeprefix("media/"): value for key, value in row.items() if key.startswith("media")}
        for row in run.rows
        if any(key.startswith("media") for key in row)
    }


@pytest.mark.parametrize("later", [False, True])
def test_they_arrive_once_with_their_row(later, record, tmp_path, online, shared):
    rows = rows_with_media(tmp_path)
    train(record, tmp_path, shared if later else online.address, rows=rows, **({} if later else ONLINE))
    if later:
        assert "num_sent=20," in online.sync(tmp_path)
    run = online.run(record)
    found = sent(run)
    assert {step: {*values} for step, values in found.items()} == {step: {"errors", "samples"} for step in (10, 20)}
    for step, values in found.items():
        assert (values["samples"]["_type"], values["samples"]["count"]) == ("images/separated", 2)
        assert run.files.keys() >= {*values["samples"]["filenames"], values["errors"]["path"]}
        table = json.loads(run.files[values["errors"]["path"]])
        assert (table["columns"], table["data"]) == (["word", "chance"], [["cat", step / 100], ["dog", None]])
    assert "was_complete=True" in online.sync(tmp_path)
    assert sent(online.run(record)) == found


def test_files_that_did_not_get_through_are_sent_by_a_later_sync(record, tmp_path, online):
    train(record, tmp_path, online.address, rows=rows_with_media(tmp_path), **ONLINE)
    run = online.run(record)
    lost = {name: run.files.pop(name) for name in [*run.files] if name.startswith("media/images")}
    assert len(lost) == 4
    assert "num_sent=0," in online.sync(tmp_path)
    assert {name: run.files[name] for name in lost} == lost
    assert "was_complete=True" in online.sync(tmp_path)


def test_a_copy_of_the_run_has_its_rows_without_them(record, tmp_path, online):
    (tmp_path / "run").mkdir()
    train(record, tmp_path / "run", online.address, rows=rows_with_media(tmp_path / "run"), **ONLINE)
    assert copy_runs(Selection("team", "p"), tmp_path / "copy", lambda *_: None).num_loaded >= 1
    (copied,) = [place for place in (tmp_path / "copy").iterdir() if record.run_id in place.name]
    rows = [{key: row[key] for key in row if "media/" not in key} for row in read_history(tmp_path / "run")]
    assert read_history(copied) == rows


def test_a_file_that_is_gone_keeps_no_row_from_wandb(record, tmp_path, shared):
    rows = rows_with_media(tmp_path)
    for path in (tmp_path / "media").glob("*-20*"):
        path.unlink()
    train(record, tmp_path, shared, rows=rows)
    history = read_wandb_file(tmp_path / RunRecord.read(tmp_path).wandb.directory).history
    assert [row["step"] for row in history] == [row["step"] for row in read_history(tmp_path)]
    assert (history[9]["media/samples/count"], history[9]["media/errors/nrows"]) == (2, 2)
    assert not any(key.startswith("media/") for key in history[19])
    assert history[19]["val/loss"] == 0.5
