"""Runs saved in one precision and resumed in another, in every report."""

import json

import pytest
from shown_runs import printed, rows
from synthetic_records import run

from ampsweep.config.modes import arm_after
from ampsweep.record import write_atomically
from ampsweep.record.history import HISTORY_NAME, history_line
from ampsweep.report.compare import compare_directories
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.data_formats import as_json
from ampsweep.report.markdown import markdown

FRESH = "the checkpoint has no GradScaler state; a fresh one starts at scale 65536"
TITLE = "Saved in one precision, resumed in another"


@pytest.fixture
def document(tmp_path):
    """Three seeds of two modes, each resumed in both."""

    def leave(arm, seed, losses, **more):
        directory, record = run(arm, seed, pair_key=f"{seed}", **more)
        place = tmp_path / directory.name
        place.mkdir()
        record.write(place)
        write_atomically(place / HISTORY_NAME, "".join(map(history_line, losses)))

    for seed in range(3):
        for arm in ("fp32", "amp_fp16"):
            leave(arm, seed, [{"step": 21, "train/loss": 3.0 + seed / 8}, {"step": 40}], directory=f"{arm}-{seed}")
        for saved_in, arm, jump, more, notes in (
            ("fp32", "fp32", 0.0, {}, []),
            ("fp32", "amp_fp16", 2**-10, {"amp/skipped_steps": 2.0}, [FRESH]),
            ("amp_fp16", "fp32", 0.125, {}, []),
        ):
            origin = {"from_step": 20, "saved_in": saved_in, "saved_by": f"{saved_in}-{seed}", "notes": notes}
            row = {"step": 21, "train/loss": 3.0 + seed / 8 + jump, **more}
            name = f"resumed-{arm}-{saved_in}-{seed}"
            leave(arm_after(arm, saved_in, 20), seed, [row, {"step": 40}], attempts=[origin], directory=name)
    return comparison_document(compare_directories([tmp_path]), tmp_path)


def test_the_table_has_the_jump_of_every_pair_of_arms(document):
    found = {(row["saved in"], row["resumed in"]): row for row in rows(document, "resumed")}
    assert found["fp32", "amp_fp16"] == {
        "saved in": "fp32",
        "resumed in": "amp_fp16",
        "after step": "20",
        "train loss there": "3.1250 (sd 0.1250)",
        "its jump": "+0.00098 (sd 0)",
        "skipped in the next 10": "6",
        "runs": "3",
    }
    assert (found["amp_fp16", "fp32"]["its jump"], found["fp32", "fp32"]["its jump"]) == ("+0.12 (sd 0)", "0")
    for text in (markdown(document), printed(document)):
        assert TITLE in text
        assert FRESH in text


def test_the_data_have_every_pair_of_arms(document):
    (workload,) = json.loads(as_json(document))["workloads"]
    (one,) = [one for one in workload["resumed"] if (one["saved_in"], one["resumed_in"]) == ("fp32", "amp_fp16")]
    assert one["loss_jump"] == {"mean": 2**-10, "n": 3, "sd": 0.0}
    assert (one["step"], one["skipped_steps"], one["num_runs"]) == (20, 6, 3)


def test_without_such_runs_there_is_no_table(tmp_path):
    _, record = run("fp32", 0)
    record.write(tmp_path)
    assert TITLE not in printed(comparison_document(compare_directories([tmp_path]), tmp_path))
