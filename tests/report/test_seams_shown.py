"""Runs that change their precision in the middle, in every report."""

import io
import json

import pytest
from page_reader import read_page
from rich.console import Console
from synthetic_records import run

from ampsweep.record import write_atomically
from ampsweep.record.history import HISTORY_NAME, history_line
from ampsweep.report.brief import BriefComparison
from ampsweep.report.compare import compare_directories
from ampsweep.report.console import print_comparison
from ampsweep.report.files import write_comparison
from ampsweep.report.wandb.comparison_page import comparison_page

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
def written(sweep):
    compared = compare_directories([sweep])
    dashboard = write_comparison(compared.comparison, compared.records, compared.histories, sweep)
    return sweep, dashboard, compared


def test_the_table_is_in_every_file(written):
    directory, _, _ = written
    document, page = (directory / "comparison.md").read_text(), (directory / "comparison.html").read_text()
    for line in (
        "| saved in \\\\ resumed in | fp32 | amp_bf16 | amp_fp16 |",
        "| fp32 | 0 | 0 (n=1) | +0.00098 (sd 0) |",
        "| amp_fp16 | +0.12 (sd 0) | - | 0 |",
    ):
        assert line in document
    for text in (document, page):
        assert SENTENCE in text
        assert FRESH in text
        assert "tf32 needs a GPU" in text
    assert "Saved in one precision, resumed in another" in read_page(page).text
    (found,) = json.loads((directory / "comparison.json").read_text())["seams"]
    assert " ".join(found) == ("title facts step steps margin_pct loss saved_in resumed_in cells sentence notes runs")
    assert " ".join(found["cells"][0]) == (
        "saved_in resumed_in num_runs statuses error loss_jump largest_jump val_loss_jump final_gap final_position "
        "margin skipped_steps notes is_bitwise then"
    )
    assert (found["step"], found["steps"], found["sentence"]) == (20, 40, SENTENCE)
    assert found["saved_in"] == ["fp32", "amp_fp16"]
    (cell,) = [one for one in found["cells"] if (one["saved_in"], one["resumed_in"]) == ("fp32", "amp_fp16")]
    assert cell["loss_jump"]["n"] == 3
    assert cell["loss_jump"]["mean"] == 2**-10
    assert cell["skipped_steps"] == 6
    assert cell["notes"] == [{"text": FRESH, "seeds": [0, 1, 2]}]
    assert len(found["runs"]) == 16


def test_a_console_ends_with_the_sentence(written):
    _, _, compared = written
    stream = io.StringIO()
    print_comparison(compared.comparison, Console(file=stream, width=150))
    lines = " ".join(stream.getvalue().split())
    assert lines.endswith(f"fp32 to tf32: unsupported: tf32 needs a GPU. {SENTENCE}")
    assert "Steps skipped in the first 10 after the change: fp32 to amp_fp16 6 in 3 runs." in lines


def test_a_brief_comparison_has_the_answer_so_far(written):
    _, _, compared = written
    stream = io.StringIO()
    Console(file=stream, width=200, height=60).print(BriefComparison(compared.comparison))
    assert "16 runs so far: model gpt_tiny" in stream.getvalue()
    assert SENTENCE[:80] in stream.getvalue()


def test_w_and_b_gets_a_row_for_each_pair_of_arms(written):
    directory, dashboard, compared = written
    page = comparison_page(dashboard, compared.records, group=None, html=directory / "comparison.html")
    assert page.summary["verdict"].splitlines()[-1] == SENTENCE
    rows = [dict(zip(page.tables["seams"].columns, row, strict=True)) for row in page.tables["seams"].rows]
    assert [(row["saved_in"], row["resumed_in"]) for row in rows[:2]] == [("fp32", "fp32"), ("fp32", "tf32")]
    (fresh,) = [row for row in rows if row["notes"]]
    assert (fresh["skipped_steps"], fresh["notes"], fresh["then"]) == (6, FRESH, "closed")
