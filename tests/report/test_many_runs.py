"""Comparisons of many runs: the cost of a run stays the same, and pages stay small without changing a figure."""

import cProfile
import json
import math
from pathlib import Path

import numpy as np
import pytest
from page_reader import panel, read_page
from shown_runs import document_of, like, on_gpu, section_of, write_runs
from synthetic_records import contaminated, failed

from ampsweep.analysis.comparison import compare
from ampsweep.record import HISTORY_NAME
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.data_formats import as_json
from ampsweep.report.document import blocks_of, tables
from ampsweep.report.figure import Figure
from ampsweep.report.histories import Curve, Histories
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown


def seeds(num_runs):
    """Runs of two arms, of which every fourth is lost or contaminated."""
    entries = []
    for seed in range(num_runs // 4):
        good = on_gpu("fp32", seed)
        lost = failed("amp_fp16", seed, "oom", f"out of memory in backward of step {seed + 2}", **like(good))
        disturbed = contaminated("amp_bf16", seed, f"other processes kept 1.{seed % 10} cores busy", **like(good))
        entries += [good, lost, disturbed, on_gpu("tf32", seed)]
    return entries


def random_search(num_runs):
    """A weight decay for every two runs; half of them lack the baseline."""
    entries = []
    for number in range(num_runs // 2):
        for arm in ("fp32", "amp_bf16") if number % 2 else ("amp_fp16", "amp_bf16"):
            _, record = on_gpu(arm, 0)
            record.config["optimizer"]["weight_decay"] = 0.001 * number
            record.pair_key = f"decay {number}"
            entries.append((Path(f"{arm}-{number}"), record))
    return entries


@pytest.mark.parametrize("entries", [seeds, random_search])
def test_a_run_among_many_costs_no_more_calls(entries, tmp_path):
    """A scan of all runs for each run shows in the number of calls."""
    counts = []
    for num_runs in (40, 160):
        made = entries(num_runs)
        with cProfile.Profile() as profile:
            document = document_of(made, tmp_path)
            as_json(document), markdown(document), html(document)
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    assert counts[1] < 4.2 * counts[0], counts


def test_a_page_of_many_seeds_draws_some_and_counts_all():
    entries = [on_gpu(arm, seed) for seed in range(1010) for arm in ("fp32", "amp_bf16")]
    falling = {"train/loss": Curve(np.array([1.0, 2.0]), np.array([3.0, 2.0]))}
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    histories = Histories({directory: falling for directory, _ in entries})
    document = comparison_document(Compared(comparison, entries, histories), None)
    page, (workload,) = html(document), json.loads(as_json(document))["workloads"]
    arm = workload["arms"][1]
    assert (len(workload["runs"]), arm["num_runs"], arm["speedup"]["n"]) == (2020, 1010, 1010)
    assert len(page) < 8 * 2**20
    (runs,) = (table for table in tables(document) if table.key == "runs")
    assert len(runs.rows) == 1000
    assert "1,020 more runs are in comparison.json" in page
    assert "Of up to 1,010 dots of an arm the first 200 are drawn" in page
    figures = {block.key: block for block in blocks_of(document.sections) if isinstance(block, Figure)}
    curves = figures["train-loss"]
    assert curves.table.rows[0].cells[-1].text == "1010", "the figures are of all runs"
    assert len(curves.traces) == 2 * 3, "a band for each arm"
    assert curves.remarks[0] == "fp32: 1,010 runs have no line of their own; comparison.json has all runs."


def test_long_curves_are_thinned_and_keep_their_extremes(tmp_path):
    records = write_runs([on_gpu(arm, seed) for arm in ("fp32", "amp_bf16") for seed in range(3)], tmp_path)
    rows = [{"step": step, "train/loss": 1 / step, "perf/step_ms": 10 + math.sin(step)} for step in range(1, 501)]
    for directory, _ in records:
        (directory / HISTORY_NAME).write_text("".join(json.dumps(row) + "\n" for row in rows))
    element, figure = panel(read_page(html(document_of(records, tmp_path))), "train-loss")
    assert max(len(trace["x"]) for trace in figure["traces"]) <= 300
    assert "are thinned to" in element.text
    assert min(min(trace["y"]) for trace in figure["traces"]) == pytest.approx(1 / 500)
    assert "more runs are in" not in element.text


def test_only_the_first_of_many_workloads_have_panels(tmp_path):
    document = document_of(random_search(80), tmp_path)
    assert len(section_of(document, "panels").blocks) == 30
    assert "10 more workloads in comparison.json." in html(document)
    assert len(json.loads(as_json(document))["workloads"]) == 40


def test_reasons_name_the_nearest_of_many_baselines():
    entries = []
    for number, (decay, lr) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 2.0), (0.4, 3.0), (0.5, 2.0)]):
        _, record = on_gpu("amp_bf16" if number == 4 else "fp32", 0, pair_key=f"of {number}")
        record.config["optimizer"] |= {"weight_decay": decay, "lr": lr}
        entries.append((Path(f"run-{number}"), record))
    workloads = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    (reason,) = [run.not_paired for workload in workloads for run in workload.runs if run.arm == "amp_bf16"]
    differences = [(difference.key, difference.there, difference.here) for difference in reason.differences]
    assert differences == [("optimizer.weight_decay", "0.2", "0.5")]
