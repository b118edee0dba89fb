"""The largest batches in every report."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from page_reader import figures, panel, read_page
from rich.console import Console
from shown_runs import dashboard_of
from synthetic_records import failed, out_of_memory, run, searched

from ampsweep.analysis.comparison import compare
from ampsweep.record.batch_search import BatchSearch, PredictedBatch
from ampsweep.record.parts import StepPrediction
from ampsweep.report.brief import BriefComparison
from ampsweep.report.console import print_comparison
from ampsweep.report.markdown import markdown
from ampsweep.report.page.document import html
from ampsweep.report.wandb.comparison_page import comparison_page

SENTENCE = (
    "On this device: fp32 up to batch 4, amp_bf16 up to batch 6 (1.50x, 2.00x the throughput, n=1); tf32: unsupported."
)


@pytest.fixture
def entries():
    begun = BatchSearch(limit=65536, first=1, stride=1)
    return [
        searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0),
        searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0),
        failed("tf32", 0, "unsupported", "tf32 needs a GPU", batch_search=begun, facts={"model_size": None}),
    ]


@pytest.fixture
def predicted():
    """fp32 as predicted, but for one in the batch and a hundredth in the peak; of the others nothing was."""
    refused = PredictedBatch(refused="aten.nonzero depends on values")
    parts = {"parameters": 400 * 2**20, "activations": 600 * 2**20}
    peak = parts | {"activations": 590 * 2**20}
    told = StepPrediction(peak_bytes=990 * 2**20, peak=peak, error_pct=-1.0)
    fp32 = searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0, predicted=PredictedBatch(batch_size=5))
    fp32[1].prediction = told
    fp32[1].summary |= {f"memory/{category}_gib": size / 2**30 for category, size in parts.items()}
    return [
        fp32,
        searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0, predicted=refused),
        searched("pure_bf16", 8, out_of_memory(9), samples_per_sec=300.0, predicted=refused),
    ]


def printed(entries):
    stream = io.StringIO()
    print_comparison(compare(entries, baseline="fp32", margin_pct=1.0), Console(file=stream, width=150))
    return stream.getvalue()


def test_a_brief_comparison_has_the_answer_so_far(entries):
    stream = io.StringIO()
    found = compare(entries, baseline="fp32", margin_pct=1.0)
    Console(file=stream, width=150).print(BriefComparison(found))
    title, answer = stream.getvalue().splitlines()
    assert title.startswith("3 runs so far: model gpt_tiny")
    assert answer == SENTENCE


def test_the_console_has_a_table_the_reasons_and_the_answer(entries):
    out = printed(entries)
    assert "Largest batch that trains: model gpt_tiny, data text, seq_len 64, device_name a CPU" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("fp32 ", "amp_bf16 "))}
    assert rows["fp32"] == ["fp32", "4", "-", "150", "-", "1000", "MiB", "1", "completed"]
    assert rows["amp_bf16"] == ["amp_bf16", "6", "1.50x", "300", "2.00x", "1000", "MiB", "1", "completed"]
    assert "amp_bf16: batch 7 runs out of memory in backward: 3.00 MiB asked for with 62.0 MiB in use" in out
    assert out.rstrip().endswith(SENTENCE)
    assert "No runs to compare" not in out


def test_predictions_have_columns_and_missing_ones_a_reason(predicted):
    out = printed(predicted)
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("fp32 ", "amp_bf16 "))}
    assert rows["fp32"] == [
        "fp32",
        "4",
        "5",
        "-",
        "150",
        "-",
        "1000",
        "MiB",
        "990",
        "MiB",
        "(-1.00%)",
        "1",
        "completed",
    ]
    assert rows["amp_bf16"] == ["amp_bf16", "6", "-", "1.50x", "300", "2.00x", "1000", "MiB", "-", "1", "completed"]
    assert "amp_bf16, pure_bf16: nothing was predicted: aten.nonzero depends on values\n" in out
    document = markdown(compare(predicted, baseline="fp32", margin_pct=1.0).relative_to(Path("runs")))
    assert "| arm | largest batch | predicted batch | batch over baseline |" in document
    assert "| fp32 | 4 | 5 | - | 150 | - | 1000 MiB | 990 MiB (-1.00%) | 1 | completed |" in document


def test_the_page_has_the_predicted_beside_the_measured(predicted, write, tmp_path):
    page = read_page(html(dashboard_of(write(predicted), tmp_path)))
    row, *_ = page.one("section", id="largest-batch").all("table")[0].rows()
    assert (row["predicted batch"], row["predicted peak"]) == ("5", "990 MiB (-1.00%)")
    _, memory = panel(page, "b0-memory-there")
    assert [trace["name"] for trace in memory["traces"]] == ["parameters", "activations"]
    assert memory["traces"][0]["y"][:2] == ["fp32", "fp32 (predicted)"]


def test_wandb_has_the_search_as_figures(predicted, write, tmp_path):
    records = write(predicted)
    page = comparison_page(dashboard_of(records, tmp_path), records, group="mine", html=tmp_path / "comparison.html")
    assert set(page.tables) == {"runs", "largest_batches"}, "no arms of an ordinary comparison"
    table = page.tables["largest_batches"]
    fp32, bf16, pure = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (fp32["batch_size"], fp32["predicted_batch_size"], fp32["prediction_error_pct"]) == (4, 5, -1.0)
    assert (bf16["why_unpredicted"], bf16["predicted_batch_size"]) == ("aten.nonzero depends on values", None)
    assert pure["times_baseline"] == 2.0
    assert len(page.tables["runs"].rows) == 3
    assert page.summary["verdict"].startswith("On this device: fp32 up to batch 4, amp_bf16 up to batch 6 (")
    assert page.summary["fp32/predicted_batch_size"] == 5
    assert "amp_bf16/predicted_batch_size" not in page.summary, "what nobody predicted is absent"
    assert "recommended_arm" not in page.summary
    assert page.config["arms"] == ["amp_bf16", "fp32", "pure_bf16"]
    assert {"largest batch/largest-batch", "largest batch/memory-there"} <= set(page.figures)


def test_an_ordinary_comparison_keeps_its_table_beside_it(entries):
    out = printed([run("fp32"), run("amp_bf16"), *entries])
    assert "against fp32" in out
    assert SENTENCE in out


def test_markdown_has_the_answer_and_every_batch_that_was_tried(entries):
    document = markdown(compare(entries, baseline="fp32", margin_pct=1.0).relative_to(Path("runs")))
    assert f"**{SENTENCE}**" in document
    assert "| amp_bf16 | 6 | 1.50x | 300 | 2.00x |" in document
    assert (
        "| amp_bf16 | 7 | out of memory | - | out of memory in backward of step 2: 3 MiB asked for with 62" in document
    )
    assert "| tf32 | 0 | unsupported |" in document
    assert "**largest batch**: each batch was tried" in document
    assert "parity" not in document, "nothing was held against a margin"


def test_the_page_has_a_card_with_panels_and_the_tables(entries, write, tmp_path):
    page = read_page(html(dashboard_of(write(entries), tmp_path)))
    card = page.one("section", id="largest-batch").one("article")
    assert card.one("div", class_="answer").text == SENTENCE
    row = next(row for row in card.all("table")[0].rows() if row["arm"] == "amp_bf16")
    assert row["largest batch"] == "6"
    _, batches = panel(page, "b0-largest-batch")
    assert {trace["name"]: trace["x"] for trace in batches["traces"] if trace["type"] == "bar"} == {
        "fp32": [4],
        "amp_bf16": [6],
    }
    _, throughput = panel(page, "b0-samples-per-sec-there")
    assert {trace["name"]: trace["x"] for trace in throughput["traces"] if trace["type"] == "bar"} == {
        "fp32": [150],
        "amp_bf16": [300],
    }
    assert len(figures(page)) == 2
    assert not page.all("section", id="verdict")
    assert "tf32 needs a GPU" in page.one("section", id="problems").text
    assert len(page.one("section", id="runs").all("table")[1].rows()) == 3


def test_without_a_search_no_report_speaks_of_one(write, tmp_path):
    records = [run("fp32"), run("amp_bf16")]
    comparison = compare(records, baseline="fp32", margin_pct=1.0)
    assert "argest batch" not in markdown(replace(comparison)) + printed(records)
    assert not read_page(html(dashboard_of(write(records), tmp_path))).all("section", id="largest-batch")
