"""Runs that change their precision in the middle, in every report."""

import json

import pytest
from shown_runs import printed, rows
from synthetic_records import run

from ampsweep.record import write_atomically
from ampsweep.record.history import HISTORY_NAME, history_line
from ampsweep.report.compare import compare_directories
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.data_formats import as_json
from ampsweep.report.markdown import markdown

SENTENCE = (
    "1 of 3 changes of precision moves the training loss by 1% or more: the largest jump is +0.12 (4.0%), from "
    "amp_fp16 to fp32; resumed in the precision it was saved in, every run goes on bitwise."
)
FRESH = "the checkpoint has no GradScaler state; a fresh one starts at scale 65536"


@pytest.fixture
def sweep(tmp_path):
    """Three seeds of two modes, each resumed in both; tf32 is beyond the device."""

    def leave(arm, seed, saved_in, rows, **more):
        directory, record = run(
            arm,
            seed,
            facts={"seam_step": 20, "saved_in": saved_in},
            config={"seam": {"step": 20, "saved_in": saved_in}},
            pair_key=f"{seed}",
            directory=f"{arm}-{saved_in}-s{seed}",
            **more,
        )
        place = tmp_path / directory.name
        place.mkdir()
        record.write(place)
        write_atomically(place / HISTORY_NAME, "".join(map(history_line, rows)))

    for seed in range(3):
        for arm in ("fp32", "amp_fp16"):
            rows = [{"step": 20, "val/loss": 2.5}, {"step": 21, "train/loss": 3.0 + seed / 8}, {"step": 40}]
            leave(arm, seed, None, rows)
        for saved_in, arm, jump in (
            ("fp32", "fp32", 0.0),
            ("fp32", "amp_fp16", 2**-10),
            ("amp_fp16", "fp32", 0.125),
            ("amp_fp16", "amp_fp16", 0.0),
        ):
            row = {"step": 21, "train/loss": 3.0 + seed / 8 + jump, "seam/val_loss": 2.5}
            row |= {"amp/skipped_steps": 2.0} if (saved_in, arm) == ("fp32", "amp_fp16") else {}
            notes = [FRESH] if (saved_in, arm) == ("fp32", "amp_fp16") else []
            leave(arm, seed, saved_in, [row, {"step": 40}], attempts=[{"from_step": 20, "notes": notes}])
        beyond = {"status": "unsupported", "error": "tf32 needs a GPU", "step_ms": None, "val_loss": None}
        leave("tf32", seed, "fp32", [], **beyond)
    leave("amp_bf16", 0, "fp32", [{"step": 21, "train/loss": 3.0}, {"step": 40}])
    return tmp_path


@pytest.fixture
def document(sweep):
    return comparison_document(compare_directories([sweep]), sweep)


def test_the_table_has_the_jump_of_every_pair_of_arms(document):
    of_arm = {row["saved in \\ resumed in"]: row for row in rows(document, "jumps")}
    assert of_arm["fp32"] | {"saved in \\ resumed in": ""} == {
        "saved in \\ resumed in": "",
        "fp32": "0",
        "amp_bf16": "0 (n=1)",
        "amp_fp16": "+0.00098 (sd 0)",
    }
    assert (of_arm["amp_fp16"]["fp32"], of_arm["amp_fp16"]["amp_fp16"]) == ("+0.12 (sd 0)", "0")
    for text in (markdown(document), printed(document)):
        assert SENTENCE in text
        assert FRESH in text
        assert "tf32 needs a GPU" in text
    assert "Steps skipped in the first 10 after the change: fp32 to amp_fp16 6 in 3 runs." in printed(document)
    figures = {(row["saved in"], row["resumed in"]): row for row in rows(document, "seams")}
    assert (figures["fp32", "amp_fp16"]["skipped steps"], figures["fp32", "amp_fp16"]["then"]) == ("6", "closed")
    assert document.summary["verdict"].splitlines()[-1] == SENTENCE


def test_the_data_have_every_pair_with_its_runs(document):
    (found,) = json.loads(as_json(document))["seams"]
    assert (found["step"], found["steps"]) == (20, 40)
    assert found["saved_in"] == ["fp32", "amp_fp16"]
    (seam,) = [one for one in found["seams"] if (one["saved_in"], one["resumed_in"]) == ("fp32", "amp_fp16")]
    assert (seam["loss_jump"]["n"], seam["loss_jump"]["mean"], seam["skipped_steps"]) == (3, 2**-10, 6)
    assert seam["notes"][0]["cause"] == FRESH
    assert len(found["runs"]) == 16
