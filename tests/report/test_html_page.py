"""The figures of a comparison's page, a line for each trace in golden files; pages of many runs stay small."""

import cProfile
import json
import re
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from page_reader import drawn, figures, panel, read_page
from shown_runs import GIB, document_of, front_runs, like, on_gpu, rows, section_of, write_runs
from synthetic_records import contaminated, failed, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.records import HISTORY_NAME
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.data_formats import as_json
from ampsweep.report.document import blocks_of
from ampsweep.report.histories import Curve, Histories, read_histories
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.palette import MODE_COLOURS


def page_of(records, directory=None):
    return read_page(html(document_of(records, directory)))


def panels(page, *keys):
    return "\n\n".join(drawn(*panel(page, key)) for key in keys) + "\n"


def test_what_is_drawn(gpu_page, golden):
    """Of fp32, amp_bf16 and amp_fp16, which runs out of memory at the larger batch."""
    of_workload = ("front", "memory-categories", "memory-saved", "speedup", "samples-per-sec", "loss-gap")
    golden("figures.txt", panels(gpu_page, *of_workload, "train-loss", "scale", "memory-against-size"))


def test_the_stack_adds_up_to_the_peak_with_its_workspaces(golden):
    """The allocator's peak has 96 MiB more than the tensors of the traced step, the predicted peak 80 MiB."""
    entries = [on_gpu(arm, seed) for arm in ("fp32", "amp_bf16") for seed in (0, 1, 2)]
    for _, record in entries:
        more = 96 + 10 * (record.identity.seed - 1)
        record.summary["memory/peak_allocated_gib"] = (sum(record.memory.peak.values()) + more * 2**20) / GIB
        record.prediction.allocator_peak_bytes = sum(record.prediction.peak.values()) + 80 * 2**20
    golden("stack.txt", panels(page_of(entries), "memory-categories"))


def test_the_front_is_a_picture_with_the_memory_limit(golden):
    given = compare(front_runs(), baseline="fp32", margin_pct=1.0, memory_gib=0.6)
    document = comparison_document(Compared(given, [], read_histories([], [])), None)
    golden("front.txt", panels(read_page(html(document)), "front"))


def test_lost_and_diverged_runs_are_gaps_and_remarks(write, tmp_path, golden):
    lost = failed("amp_bf16", 1, "diverged", "the training loss is nan at step 40", **like(on_gpu("amp_bf16", 1)))
    arms = ("fp32", "amp_bf16", "amp_bf16+cache_enabled=false")
    records = write([*(on_gpu(arm, seed) for arm in arms for seed in range(3) if seed != 1 or arm == "fp32"), lost])
    shown = panels(page_of(records, tmp_path), "train-loss")
    path = tmp_path / "amp_bf16-gpt_tiny-8-s1" / HISTORY_NAME
    path.write_text(re.sub(r'"train/loss": [^,}]+', '"train/loss": "Infinity"', path.read_text()))
    (tmp_path / "fp32-gpt_tiny-8-s0" / HISTORY_NAME).write_text('{"step": 5, "train/loss": 1.0}\nnot json\n')
    golden("lost_runs.txt", f"{shown}\n{panels(page_of(records, tmp_path), 'train-loss')}")


def test_the_speed_of_a_contaminated_run_is_in_no_panel(golden):
    entries = [*sweep("fp32", [100.0, 100.0]), *sweep("amp_bf16", [50.0]), contaminated("amp_bf16", 1, step_ms=500.0)]
    for _, record in entries:
        record.summary["perf/samples_per_sec"] = 8000 / record.summary["perf/step_ms"]
    shown = panels(page_of(entries), "samples-per-sec")
    entries[2][1].contamination = entries[3][1].contamination
    page = page_of(entries)
    golden("contaminated.txt", f"{shown}\n{panels(page, 'samples-per-sec')}")
    assert not page.all("figure", data_key="power"), "without figures"
    assert not page.all("section", id="series")


def test_plotly_accepts_every_figure_with_units_and_colours(gpu_page):
    for figure in figures(gpu_page):
        go.Figure(data=figure["traces"], layout=figure["layout"])
        for axis in ("xaxis", "yaxis"):
            described = figure["layout"][axis]
            assert described.get("type") == "category" or described["title"]["text"]
        for trace in figure["traces"]:
            colours = {trace.get("marker", {}).get("color"), trace.get("line", {}).get("color")} - {None}
            if (arm := trace["meta"].get("arm")) is not None:
                assert colours <= {MODE_COLOURS[arm]}


def seeds(num_runs):
    """A quarter of the runs are lost, another is contaminated, each with a reason of its own."""
    of, good = range(num_runs // 4), like(on_gpu("fp32", 0))
    lost = [failed("amp_fp16", seed, "oom", f"out of memory in backward of step {seed + 2}", **good) for seed in of]
    disturbed = [contaminated("amp_bf16", seed, f"others kept 1.{seed % 10} cores busy", **good) for seed in of]
    return [*lost, *disturbed, *(on_gpu(arm, seed) for seed in of for arm in ("fp32", "tf32"))]


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
    assert len(rows(document, "runs")) == 1000
    assert "1,020 more runs are in comparison.json" in page
    assert "Of up to 1,010 dots of an arm the first 200 are drawn" in page
    (curves,) = (block for block in blocks_of(document.sections) if getattr(block, "key", "") == "train-loss")
    assert curves.table.rows[0].cells[-1].text == "1010", "the figures are of all runs"
    assert len(curves.traces) == 2 * 3, "a band for each arm"
    assert curves.remarks[0] == "fp32: 1,010 runs have no line of their own; comparison.json has all runs."


def test_long_curves_are_thinned(tmp_path):
    records = write_runs([on_gpu(arm, seed) for arm in ("fp32", "amp_bf16") for seed in range(3)], tmp_path)
    lines = [json.dumps({"step": step, "train/loss": 1 / step}) + "\n" for step in range(1, 501)]
    for directory, _ in records:
        (directory / HISTORY_NAME).write_text("".join(lines))
    element, figure = panel(page_of(records, tmp_path), "train-loss")
    assert max(len(trace["x"]) for trace in figure["traces"]) <= 300
    assert "are thinned to" in element.text
    assert "more runs are in" not in element.text


def test_only_the_first_of_many_workloads_have_panels(tmp_path):
    document = document_of(random_search(80), tmp_path)
    assert len(section_of(document, "panels").blocks) == 30
    assert "10 more workloads in comparison.json." in html(document)
    assert len(json.loads(as_json(document))["workloads"]) == 40
