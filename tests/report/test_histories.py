"""Histories become curves; what is damaged of them is told and the rest is used."""

import json
import math

import pytest
from synthetic_records import failed, run

from ampsweep.record import HISTORY_NAME, RowsDigest, Stretch, history_line
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
    assert (found.missing, found.damage, found.is_torn) == (None, None, True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json\n", "is not JSON"),
        (b"\xff\x00\x01\n", "is not JSON"),
        (b"\n", "is not JSON"),
        (b"[1, 2]\n", "is not a mapping"),
        (b'{"train/loss": 1.0}\n', "has no step"),
        (b'{"step": -1}\n', "has no step"),
        (b'{"step": true}\n', "has no step"),
        (b'{"step": 7.5}\n', "has no step"),
        (b'{"step": 99, "train/loss": 1.0}\n', "has a step (99) out of turn"),
        (b'{"step": 1, "train/loss": 1.0}\n', "has a step (1) out of turn"),
        (b'{"step": 7, "train/loss": [1]}\n', "has no number at train/loss"),
        (b'{"step": 7, "train/loss": "low"}\n', "has no number at train/loss"),
        (b'{"step": 7, "train/loss": 1' + 400 * b"0" + b"}\n", "has no number at train/loss"),
        (b'{"step": 7, "train/loss": 1' + 5000 * b"0" + b"}\n", "is not JSON"),
        (20_000 * b"[" + b"\n", "is not JSON"),
    ],
)
def test_a_damaged_line_costs_its_row_and_no_other(tmp_path, line, why):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    write(whole, *rows(1, 5, 10, 15))
    write(broken, *rows(1, 5), line, *rows(10, 15))
    found = read_curves(broken, [LOSS])
    assert found.damage == f"is damaged: line 3 {why}"
    expected = read_curves(whole, [LOSS]).curves[LOSS]
    assert found.curves[LOSS].steps.tolist() == expected.steps.tolist()
    assert found.curves[LOSS].values.tolist() == expected.values.tolist()


def test_damaged_lines_are_counted_and_the_first_is_named(tmp_path):
    write(tmp_path, *rows(1), b"{\n", *rows(2), b'{"step": 3, "train/loss": {}}\n')
    assert read_curves(tmp_path, [LOSS]).damage == "has 2 damaged lines of 4; the first, line 2, is not JSON"


def test_lines_that_are_rows_only_together_are_none(tmp_path):
    """Joined by commas as they are for parsing, these would be two rows of two lines."""
    write(tmp_path, b'{"step": 1}, {"step": 2}\n', b'{"step": 3, "a": [1\n', b"2]}\n")
    found = read_curves(tmp_path, [LOSS])
    assert found.damage is not None
    assert found.damage.startswith("has 3 damaged lines of 3")


def test_null_is_a_gap_and_bare_nan_is_read(tmp_path):
    write(tmp_path, b'{"step": 1, "train/loss": null}\n', b'{"step": 2, "train/loss": NaN}\n', *rows(3))
    found = read_curves(tmp_path, [LOSS])
    assert found.damage is None
    assert [math.isnan(value) for value in found.curves[LOSS].values] == [True, True, False]


@pytest.mark.parametrize(("content", "is_torn"), [(b"", False), (b'{"step": 1, "tr', True)])
def test_a_history_without_a_whole_line_is_empty(tmp_path, content, is_torn):
    write(tmp_path, content)
    found = read_curves(tmp_path, [LOSS])
    assert (found.curves, found.missing, found.damage, found.is_torn) == ({}, None, None, is_torn)


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
    path = tmp_path / HISTORY_NAME
    stretches = [Stretch(end=path.stat().st_size, blake2b=str(RowsDigest(path.read_bytes())))]
    assert omissions(tmp_path, history=stretches) == []
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"0.25", b"0.26"))
    changed = [("changed history", "has been changed since it was written: it does not match its digest")]
    assert omissions(tmp_path, history=stretches) == changed
    assert omissions(tmp_path, history=stretches, status="interrupted") == changed
    assert read_curves(tmp_path, [LOSS], stretches).curves == {}
    path.write_bytes(whole + history_line({"step": 5, LOSS: 0.0}).encode())
    assert omissions(tmp_path, history=stretches, status="interrupted") == [], "a killed process wrote it"
    assert omissions(tmp_path, history=stretches) == [("changed history", "has been added to since its run ended")]


def test_a_torn_end_is_damage_only_where_the_run_came_to_its_end(tmp_path):
    write(tmp_path, *rows(1, 2), b'{"step": 3, "tr')
    assert omissions(tmp_path) == [("damaged history", "ends within a line")]
    assert omissions(tmp_path, status="interrupted") == []


def test_losses_that_are_no_numbers_are_told_of_completed_runs(tmp_path):
    write(tmp_path, *rows(1), {"step": 2, LOSS: math.nan}, *rows(3), {"step": 4, LOSS: -math.inf})
    assert omissions(tmp_path) == [("not finite", "has no finite train/loss in 2 of 4 rows, first at step 2")]
    assert omissions(tmp_path, status="diverged") == [], "its status says so"


def test_all_lines_at_once_are_read_as_one_by_one(tmp_path):
    """The two ways of reading agree, also about what `history_line` cannot write."""
    lines = [
        json.dumps({"step": step, LOSS: step / 7, "note": 'a "quoted"\n text', "n": step}) for step in range(1, 50)
    ]
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    write(fast, *(f"{line}\n".encode() for line in lines))
    write(slow, *(f"{line}\n".encode() for line in lines), b"{\n")
    fast_curves, slow_curves = read_curves(fast, [LOSS, "n"]), read_curves(slow, [LOSS, "n"])
    assert fast_curves.damage is None
    assert slow_curves.damage is not None
    for key in (LOSS, "n"):
        assert fast_curves.curves[key].values.tolist() == slow_curves.curves[key].values.tolist()
        assert fast_curves.curves[key].steps.tolist() == slow_curves.curves[key].steps.tolist()
