"""The largest batches in every report."""

import json

import pytest
from shown_runs import document_of, printed, rows
from synthetic_records import failed, out_of_memory, run, searched

from ampsweep.record.batch_search import BatchSearch, PredictedBatch
from ampsweep.record.parts import StepPrediction
from ampsweep.report.markdown import markdown

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


def section(document):
    (found,) = (one for one in document.sections if one.key == "largest-batch")
    return found.blocks[0]


def test_the_answer_stands_over_the_table_and_the_reasons(entries):
    document = document_of(entries)
    of_arm = {row["arm"]: row for row in rows(document, "largest_batches")}
    assert list(of_arm["fp32"].values()) == ["fp32", "4", "-", "150", "-", "1000 MiB", "1", "completed"]
    assert list(of_arm["amp_bf16"].values()) == ["amp_bf16", "6", "1.50x", "300", "2.00x", "1000 MiB", "1", "completed"]
    assert section(document).title == "model gpt_tiny, data text, seq_len 64, device_name a CPU"
    text = printed(document)
    assert "amp_bf16: batch 7 runs out of memory in backward: 3.00 MiB asked for with 62.0 MiB in use" in text.replace(
        "amp_bf16 batch", "amp_bf16: batch"
    )
    assert SENTENCE in text
    assert "No runs to compare" not in text
    tried = [(row["arm"], row["batch"], row["outcome"]) for row in rows(document, "batches_tried")]
    assert ("amp_bf16", "7", "out of memory") in tried
    assert "tf32 needs a GPU" in json.dumps(rows(document, "problems"))
    assert "parity" not in markdown(document), "nothing was held against a margin"
    assert document.summary["verdict"] == SENTENCE
    assert "recommended_arm" not in document.summary


def test_predictions_have_columns_and_missing_ones_a_reason(predicted):
    document = document_of(predicted)
    of_arm = {row["arm"]: row for row in rows(document, "largest_batches")}
    assert (of_arm["fp32"]["predicted batch"], of_arm["fp32"]["predicted peak"]) == ("5", "990 MiB (-1.00%)")
    assert (of_arm["amp_bf16"]["predicted batch"], of_arm["amp_bf16"]["predicted peak"]) == ("-", "-")
    assert "amp_bf16, pure_bf16: nothing was predicted: aten.nonzero depends on values" in printed(document)


def test_an_ordinary_comparison_keeps_its_table_beside_it(entries):
    document = document_of([run("fp32"), run("amp_bf16"), *entries])
    assert len(rows(document, "arms")) == 2
    assert SENTENCE in printed(document)


def test_without_a_search_no_report_speaks_of_one():
    assert "argest batch" not in markdown(document_of([run("fp32"), run("amp_bf16")]))
