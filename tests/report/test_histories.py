"""Histories become curves; one that is damaged is told and not drawn."""

import math

import pytest
from synthetic_records import failed, run

from ampsweep.record import HISTORY_NAME, history_digest, history_line
from ampsweep.report.histories import read_curves, read_histories

LOSS = "train/loss"


def write(directory, *lines):
    directory.mkdir(exist_ok=True)
    content = [line if isinstance(line, bytes) else history_line(line).encode() for line in lines]
    (directory / HISTORY_NAME).write_bytes(b"".join(content))


def rows(*steps):
    return [{"step": step, LOSS: 1 / step} for step in steps]


def test_curves_have_their_own_steps_and_non_finite_values(tmp_path):
    write(tmp_path, {"step": 5, LOSS: 2.0}, {"step": 10, LOSS: math.inf, "val/loss": 1}, b'{"step": 15, "train/lo')
    found = read_curves(tmp_path, [LOSS, "val/loss", "amp/scale"])
    assert found.curves.keys() == {LOSS, "val/loss"}
    assert found.curves[LOSS].steps.tolist() == [5.0, 10.0]
    assert found.curves[LOSS].values.tolist() == [2.0, math.inf]
    assert found.curves["val/loss"].steps.tolist() == [10.0]
    assert (found.missing, found.is_torn) == (None, True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json\n", "is not JSON"),
        (b"\xff\x00\x01\n", "is not JSON"),
        (b"\n", "is not JSON"),
        (b"[1, 2]\n", "has no step"),
        (b'{"train/loss": 1.0}\n', "has no step"),
        (b'{"step": -1}\n', "has no step"),
        (b'{"step": true}\n', "has no step"),
        (b'{"step": 7.5}\n', "has no step"),
        (b'{"step": 1, "train/loss": 1.0}\n', "has a step (1) out of turn"),
        (b'{"step": 7, "train/loss": [1]}\n', "has no number at train/loss"),
        (b'{"step": 7, "train/loss": "low"}\n', "has no number at train/loss"),
        (b'{"step": 7, "train/loss": 1' + 400 * b"0" + b"}\n", "has no number at train/loss"),
        (b'{"step": 7, "train/loss": 1' + 5000 * b"0" + b"}\n", "is not JSON"),
        (20_000 * b"[" + b"\n", "is not JSON"),
    ],
)
def test_a_damaged_line_costs_the_history(tmp_path, line, why):
    write(tmp_path, *rows(1, 5), line, *rows(10, 15))
    found = read_curves(tmp_path, [LOSS])
    assert (found.curves, found.missing) == ({}, f"is damaged: line 3 {why}")


def test_lines_that_are_rows_only_together_are_none(tmp_path):
    """Joined by commas these would be two rows of two lines."""
    write(tmp_path, b'{"step": 1}, {"step": 2}\n', b'{"step": 3, "a": [1\n', b"2]}\n")
    assert read_curves(tmp_path, [LOSS]).missing == "is damaged: line 1 is not JSON"


def test_null_is_a_gap(tmp_path):
    write(tmp_path, b'{"step": 1, "train/loss": null}\n', *rows(3))
    found = read_curves(tmp_path, [LOSS])
    assert found.missing is None
    assert [math.isnan(value) for value in found.curves[LOSS].values] == [True, False]


@pytest.mark.parametrize(("content", "is_torn"), [(b"", False), (b'{"step": 1, "tr', True)])
def test_a_history_without_a_whole_line_is_empty(tmp_path, content, is_torn):
    write(tmp_path, content)
    found = read_curves(tmp_path, [LOSS])
    assert (found.curves, found.missing, found.is_torn) == ({}, None, is_torn)


def omissions(tmp_path, record=None, **more):
    _, made = run("fp32", attempts=[{"started_at": "2026-11-21T10:00:00+00:00"}], facts={"steps": 4}, **more)
    found = read_histories([(tmp_path, record or made)], [LOSS, "val/loss"]).omissions
    assert all(one.path == (tmp_path / HISTORY_NAME).as_posix() for one in found)
    return [(one.name, one.reason) for one in found]


@pytest.mark.parametrize(("from_step", "named"), [(4, []), (3, [("damaged history", "has no row")])])
def test_a_run_that_began_at_its_end_logs_no_row(tmp_path, from_step, named):
    write(tmp_path)
    _, record = run("fp32", attempts=[{"saved_in": "fp32", "from_step": from_step}], facts={"steps": 4})
    assert omissions(tmp_path, record) == named


def test_a_missing_history_counts_where_the_run_began_to_train(tmp_path):
    assert omissions(tmp_path) == [("no history", "is not there")]
    _, unsupported = failed("tf32", 0, "unsupported", "tf32 needs a GPU")
    assert omissions(tmp_path, unsupported) == []


def test_something_else_than_a_file_is_no_history(tmp_path):
    (tmp_path / HISTORY_NAME).mkdir()
    assert omissions(tmp_path) == [("no history", "is a directory")]


@pytest.mark.parametrize(
    ("left", "why"), [((), "has no row"), (rows(1, 2), "ends at step 2 of 4"), (rows(1, 2, 3, 4), None)]
)
def test_a_completed_run_has_a_history_to_its_last_step(tmp_path, left, why):
    write(tmp_path, *left)
    damage = [] if why is None else [("damaged history", why)]
    assert omissions(tmp_path) == damage
    assert omissions(tmp_path, cut_short="trainer.max_seconds=1 reached") == ([] if left else damage)
    assert omissions(tmp_path, status="interrupted") == []


def test_changed_rows_are_told_and_not_drawn(tmp_path):
    write(tmp_path, *rows(1, 2, 3, 4))
    path, digest = tmp_path / HISTORY_NAME, history_digest(tmp_path)
    assert omissions(tmp_path, history_digest=digest) == []
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.26"))
    changed = [("no history", "has been changed since its run ended: it does not match its digest")]
    assert omissions(tmp_path, history_digest=digest) == changed
    assert omissions(tmp_path, history_digest=digest, status="interrupted") == changed
    assert read_curves(tmp_path, [LOSS], digest).curves == {}


def test_a_torn_end_is_damage_only_where_the_run_came_to_its_end(tmp_path):
    write(tmp_path, *rows(1, 2), b'{"step": 3, "tr')
    assert omissions(tmp_path) == [("damaged history", "ends within a line")]
    assert omissions(tmp_path, status="interrupted") == []


def test_losses_that_are_no_numbers_are_told_of_completed_runs(tmp_path):
    write(tmp_path, *rows(1), {"step": 2, LOSS: math.nan}, *rows(3), {"step": 4, LOSS: -math.inf})
    assert omissions(tmp_path) == [("not finite", "has no finite train/loss in 2 of 4 rows, first at step 2")]
    assert omissions(tmp_path, status="diverged") == [], "its status says so"
