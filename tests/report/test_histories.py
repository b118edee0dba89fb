"""Histories become curves, thinned for a page; a damaged history is named and not drawn."""

import json
import math

import numpy as np
import pytest
from synthetic_records import failed, run

from ampsweep.records import HISTORY_NAME, history_digest, history_line
from ampsweep.report.histories import Curve, band, read_curves, read_histories, short_numbers

LOSS = "train/loss"


def curve(values, first=1):
    return Curve(np.arange(float(first), first + len(values)), np.array(values, dtype=float))


def write(directory, *lines):
    content = [line if isinstance(line, bytes) else history_line(line).encode() for line in lines]
    (directory / HISTORY_NAME).write_bytes(b"".join(content))


def rows(*steps):
    return [{"step": step, LOSS: 1 / step} for step in steps]


def test_a_thinned_curve_keeps_extremes_and_gaps_at_their_steps():
    values = np.sin(np.arange(1000) / 50)
    values[[333, 777]] = [9.0, -9.0]
    thin = curve(values).thinned(60)
    assert len(thin) <= 60
    points = dict(zip(thin.steps.tolist(), thin.values.tolist(), strict=True))
    assert (points[334.0], points[778.0]) == (9.0, -9.0)
    assert (np.diff(thin.steps) > 0).all()
    values[400:500] = math.nan
    assert np.isnan(curve(values).thinned(30).values).any()
    whole = curve([1.0, 2.0])
    assert whole.thinned(2) is whole


def test_a_band_covers_the_steps_that_all_runs_logged():
    made = band([curve([1.0, 2.0, 4.0]), curve([3.0, math.nan, 8.0, 9.0])])
    assert made.steps.tolist() == [1.0, 3.0]
    assert (made.low.tolist(), made.mean.tolist(), made.high.tolist()) == ([1.0, 4.0], [2.0, 6.0], [3.0, 8.0])
    for curves in ([], [curve([1.0, 2.0])], [curve([1.0, 2.0]), curve([1.0, 2.0], first=7)]):
        assert band(curves) is None
    values = np.random.default_rng(0).normal(size=(2, 1000))
    thin = band([curve(values[0]), curve(values[1])]).thinned(40)
    assert len(thin.steps) == 40
    assert (thin.low.min(), thin.high.max()) == (values.min(), values.max())
    assert ((thin.low <= thin.mean) & (thin.mean <= thin.high)).all()


def test_numbers_of_a_page_have_five_digits():
    values = [1.0, 65536.0, -3.0, math.nan, math.inf, 0.0, 2.5]
    assert json.dumps(short_numbers(np.array(values))) == "[1, 65536, -3, null, null, 0, 2.5]"
    assert json.dumps(short_numbers(np.array([5.0, 10.0]))) == "[5, 10]"
    assert short_numbers(np.array([1e-300, 1e300, 123456789.75, 1e-18])) == [1e-300, 1e300, 123456790, 1e-18]
    random = np.random.default_rng(0)
    values = random.normal(size=5000) * 10.0 ** random.integers(-10, 5, size=5000)
    written = short_numbers(values)
    assert np.allclose(np.array(written, dtype=float), values, rtol=5.1e-5, atol=0)
    assert max(len(repr(abs(number))) for number in written) <= len("0.00012345")


def test_curves_have_their_own_steps_gaps_and_a_torn_end(tmp_path):
    write(
        *(tmp_path, {"step": 5, LOSS: 2.0}, {"step": 10, LOSS: math.inf, "val/loss": 1}),
        *(b'{"step": 12, "train/loss": null}\n', b'{"step": 15, "train/lo'),
    )
    found = read_curves(tmp_path, [LOSS, "val/loss", "amp/scale"])
    curves = {key: (found.steps.tolist(), found.values.tolist()) for key, found in found.curves.items()}
    assert curves == {
        LOSS: ([5.0, 10.0, 12.0], pytest.approx([2.0, math.inf, math.nan], nan_ok=True)),
        "val/loss": ([10.0], [1.0]),
    }
    assert (found.missing, found.is_torn) == (None, True)
    for content, is_torn in ((b"", False), (b'{"step": 1, "tr', True)):
        write(tmp_path, content)
        found = read_curves(tmp_path, [LOSS])
        assert (found.curves, found.missing, found.is_torn) == ({}, None, is_torn)


NOT_JSON = (b"not json", b"\xff\x00\x01", 20_000 * b"[", b'{"step": 1%b}' % (5000 * b"0"))
NO_STEP = (b"[1, 2]", b'{"a": 1}', b'{"step": -1}', b'{"step": true}', b'{"step": 7.5}')
NO_NUMBER = (b"[1]", b'"low"', b"1" + 400 * b"0")
DAMAGED = (
    *((line, "is not JSON") for line in NOT_JSON),
    (b'{"step": 6}, {"step": 7}\n{"step": 8, "a": [1\n2]}', "is not JSON"),  # joined by commas these would be rows
    *((line, "has no step") for line in NO_STEP),
    *((b'{"step": %d}' % step, f"has a step ({step}) out of turn") for step in (1, 5)),
    *((b'{"step": 7, "train/loss": %b}' % value, "has no number at train/loss") for value in NO_NUMBER),
)


def test_a_damaged_line_costs_the_history(tmp_path):
    for line, why in DAMAGED:
        write(tmp_path, *rows(1, 5), line + b"\n", *rows(10, 15))
        found = read_curves(tmp_path, [LOSS])
        assert (found.curves, found.missing) == ({}, f"is damaged: line 3 {why}")


def omissions(tmp_path, record=None, **more):
    _, made = run("fp32", attempts=[{"started_at": "2026-11-21T10:00:00+00:00"}], facts={"steps": 4}, **more)
    found = read_histories([(tmp_path, record or made)], [LOSS, "val/loss"]).omissions
    assert all(problem.path == (tmp_path / HISTORY_NAME).as_posix() for problem in found)
    return "; ".join(f"{problem.name}: {problem.reason}" for problem in found)


def test_a_history_may_be_missing_if_the_run_never_trained(tmp_path):
    assert omissions(tmp_path) == "no history: is not there"
    assert omissions(tmp_path, failed("tf32", 0, "unsupported", "tf32 needs a GPU")[1]) == ""
    write(tmp_path)
    for from_step, named in ((4, ""), (3, "damaged history: has no row")):
        _, record = run("fp32", attempts=[{"saved_in": "fp32", "from_step": from_step}], facts={"steps": 4})
        assert omissions(tmp_path, record) == named, "a run that began at its end logs no row"
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / HISTORY_NAME).mkdir()
    assert omissions(tmp_path) == "no history: is a directory"


def test_a_completed_run_has_a_history_to_its_last_step(tmp_path):
    for left, damage, of_cut_short in (
        ((), "damaged history: has no row", "damaged history: has no row"),
        (rows(1, 2), "damaged history: ends at step 2 of 4", ""),
        (rows(1, 2, 3, 4), "", ""),
        ((*rows(1, 2), b'{"step": 3, "tr'), "damaged history: ends within a line", None),
    ):
        write(tmp_path, *left)
        assert (omissions(tmp_path), omissions(tmp_path, status="interrupted")) == (damage, "")
        if of_cut_short is not None:
            assert omissions(tmp_path, cut_short="trainer.max_seconds=1 reached") == of_cut_short


def test_changed_histories_and_losses_not_finite_are_named(tmp_path):
    write(tmp_path, *rows(1, 2, 3, 4))
    path, digest = tmp_path / HISTORY_NAME, history_digest(tmp_path)
    assert omissions(tmp_path, history_digest=digest) == ""
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.26"))
    changed = "no history: has been changed since its run ended: it does not match its digest"
    assert omissions(tmp_path, history_digest=digest, status="interrupted") == changed
    assert read_curves(tmp_path, [LOSS], digest).curves == {}
    write(tmp_path, *rows(1), {"step": 2, LOSS: math.nan}, *rows(3), {"step": 4, LOSS: -math.inf})
    assert omissions(tmp_path) == "not finite: has no finite train/loss in 2 of 4 rows, first at step 2"
    assert omissions(tmp_path, status="diverged") == "", "its status says so"
