"""The figures of a comparison's page."""

import math
import re

import plotly.graph_objects as go
import pytest
from page_reader import figures, panel, read_page
from shown_runs import GIB, document_of, front_runs, gpu_runs, like, memory, on_gpu
from synthetic_records import contaminated, failed, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.record import HISTORY_NAME
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.histories import read_histories
from ampsweep.report.html import html
from ampsweep.report.palette import CATEGORY_COLOURS, MODE_COLOURS


def page_of(records, directory):
    return read_page(html(document_of(records, directory)))


def by_arm(figure, **wanted):
    """Arm -> its only trace with these attributes."""
    traces = [trace for trace in figure["traces"] if all(trace.get(key) == wanted[key] for key in wanted)]
    assert len({trace["meta"]["arm"] for trace in traces}) == len(traces)
    return {trace["meta"]["arm"]: trace for trace in traces}


@pytest.fixture(scope="module")
def workload():
    return compare(gpu_runs(), baseline="fp32", margin_pct=1.0).workloads[0]


def test_memory_is_stacked_with_the_prediction_beside_it(gpu_page):
    element, figure = panel(gpu_page, "memory-categories")
    bars = ["fp32", "fp32 (predicted)", "amp_bf16", "amp_bf16 (predicted)", "amp_fp16", "amp_fp16 (predicted)"]
    for trace in figure["traces"]:
        category = trace["name"].replace(" ", "_")
        assert (trace["y"], trace["marker"]["color"]) == (bars, CATEGORY_COLOURS[category])
        for bar, value in zip(bars, trace["x"], strict=True):
            size = memory(bar.partition(" ")[0], 8)[category]
            assert value * GIB == pytest.approx(size * (1.01 if "predicted" in bar else 1), abs=1)
    assert figure["layout"]["xaxis"]["title"]["text"] == "memory at the peak (GiB)"
    table = {row["arm"]: row for row in element.one("table").rows()}
    assert table["fp32"]["activations"] == "1.00 GiB"
    assert table["amp_bf16 (predicted)"]["all"].endswith("(+1.0%)")


def test_the_stack_adds_up_to_the_peak_with_its_workspaces(tmp_path):
    """The allocator's peak has 96 MiB more than the tensors of the traced step, the predicted peak 80 MiB."""
    entries = [on_gpu(arm, seed) for arm in ("fp32", "amp_bf16") for seed in (0, 1, 2)]
    for _, record in entries:
        more = 96 + 10 * (record.identity.seed - 1)
        record.summary["memory/peak_allocated_gib"] = (sum(record.memory.peak.values()) + more * 2**20) / GIB
        record.prediction.allocator_peak_bytes = sum(record.prediction.peak.values()) + 80 * 2**20
    element, figure = panel(page_of(entries, tmp_path), "memory-categories")
    rest = next(trace for trace in figure["traces"] if trace["name"] == "unattributed")
    assert rest["text"] == ["96.0 MiB", "80.0 MiB", "96.0 MiB", "80.0 MiB"]
    peaks = [arm.peak_memory_bytes for arm in compare(entries, baseline="fp32", margin_pct=1.0).workloads[0].arms]
    drawn = [sum(trace["x"][bar] or 0 for trace in figure["traces"]) * GIB for bar in (0, 2)]
    assert drawn == pytest.approx(peaks)
    assert "unattributed: what the run's peak has besides" in element.text
    row, *_ = element.one("table").rows()
    assert (row["all"], row["unattributed"]) == ("3.22 GiB", "96.0 MiB")


def test_bars_have_their_figure_beside_them(gpu_page):
    _, figure = panel(gpu_page, "samples-per-sec")
    end = figure["layout"]["xaxis"]["range"][1]
    labels = by_arm(figure, mode="text")
    assert (labels["fp32"]["x"], labels["fp32"]["text"]) == ([end], ["79.2 1/s"])
    assert end > max(x for trace in by_arm(figure, mode="markers").values() for x in trace["x"])
    assert by_arm(figure, type="bar")["fp32"]["x"][0] == pytest.approx(80 / 1.01, rel=1e-3), "the median"


def test_pairs_have_a_dot_each_and_the_mean_with_its_interval(gpu_page, workload):
    arms = {arm.arm: arm for arm in workload.arms}
    for key, estimate, scale in (("speedup", "speedup", 1.0), ("memory-saved", "memory_saved_bytes", 2**20)):
        _, figure = panel(gpu_page, key)
        for middle, dots in zip(figure["traces"][::2], figure["traces"][1::2], strict=True):
            arm = middle["meta"]["arm"]
            expected = getattr(arms[arm], estimate)
            assert middle["x"][0] == pytest.approx(expected.value / scale)
            assert len(dots["x"]) == expected.n
            assert sum(dots["x"]) / expected.n == pytest.approx(middle["x"][0], rel=0.01)
            assert middle["marker"]["color"] == dots["marker"]["color"] == MODE_COLOURS[arm]
            if expected.interval is None:
                assert "error_x" not in middle
            else:
                high = middle["x"][0] + middle["error_x"]["array"][0]
                low = middle["x"][0] - middle["error_x"]["arrayminus"][0]
                assert (low, high) == pytest.approx([end / scale for end in expected.interval])


def test_the_loss_gap_is_drawn_with_margin_and_interval(gpu_page, workload):
    parity = workload.verdict.arms[0].judgements.parities[0]
    element, figure = panel(gpu_page, "loss-gap")
    margins = [shape for shape in figure["layout"]["shapes"] if shape["type"] == "rect"]
    assert (margins[0]["x0"], margins[0]["x1"]) == pytest.approx((-parity.margin, parity.margin))
    decisive = next(trace for trace in figure["traces"] if trace["mode"] == "lines")
    assert decisive["x"] == pytest.approx([parity.low, parity.high])
    dots = next(trace for trace in figure["traces"] if len(trace["x"]) == 3)
    assert dots["x"] == pytest.approx([0.0, 0.002, 0.004])
    assert element.one("table").rows()[0]["parity"] == parity.verdict == "equivalent"


def test_curves_have_a_band_over_seeds(gpu_page):
    _, figure = panel(gpu_page, "train-loss")
    of_arm = [trace for trace in figure["traces"] if trace["meta"]["arm"] == "fp32"]
    low, high, mean = (trace for trace in of_arm if "hovertemplate" not in trace)
    runs = [trace for trace in of_arm if "hovertemplate" in trace]
    assert len(runs) == 3
    assert runs[0]["x"] == mean["x"] == [5 * index for index in range(1, 9)]
    assert runs[1]["y"][0] == pytest.approx(4 * math.exp(-1 / 3) + 2.01, rel=1e-5)
    assert (low["y"], high["y"]) == (runs[0]["y"], runs[2]["y"])
    assert mean["y"] == pytest.approx(runs[1]["y"], rel=1e-5)
    element, scale = panel(gpu_page, "scale")
    assert {trace["meta"]["arm"] for trace in scale["traces"]} == {"amp_fp16"}
    assert scale["layout"]["yaxis"]["type"] == "log"
    assert "fp32, amp_bf16: not logged" in element.text


def test_memory_against_size_marks_where_it_ran_out(gpu_page):
    element, figure = panel(gpu_page, "memory-against-size")
    line = by_arm(figure, mode="lines+markers")["fp32"]
    assert line["x"] == [8, 16]
    assert [value * GIB for value in line["y"]] == pytest.approx(
        [sum(memory("fp32", size).values()) for size in (8, 16)]
    )
    assert by_arm(figure, mode="markers")["amp_fp16"]["x"] == [16]
    assert "amp_fp16 ran out of memory at batch size 16" in element.text
    row, *_ = element.one("table").rows()
    assert row == {"batch size": "8", "fp32": "3.13 GiB", "amp_bf16": "2.88 GiB", "amp_fp16": "2.88 GiB"}


def test_the_front_is_a_picture_with_the_memory_limit():
    given = compare(front_runs(), baseline="fp32", margin_pct=1.0, memory_gib=0.6)
    element, figure = panel(
        read_page(html(comparison_document(Compared(given, [], read_histories([], [])), None))), "front"
    )
    markers = by_arm(figure, mode="markers")
    symbols = {arm: trace["marker"]["symbol"] for arm, trace in markers.items()}
    assert symbols == {"fp32": "circle-open", "amp_bf16": "circle", "pure_bf16": "triangle-up"}
    assert markers["amp_bf16"]["x"] == [pytest.approx(90.0, rel=0.001)]
    assert markers["amp_bf16"]["y"] == [800.0]
    (limit,) = figure["layout"]["shapes"]
    assert limit["y0"] == limit["y1"] == pytest.approx(0.6 * 1024)
    assert element.one("table").rows()[0]["front"] == "beaten by amp_bf16 (slower and more memory)"


def test_lost_and_diverged_runs_are_gaps_and_remarks(write, tmp_path):
    lost = failed("amp_bf16", 1, "diverged", "the training loss is nan at step 40", **like(on_gpu("amp_bf16", 1)))
    records = write([*(on_gpu("fp32", seed) for seed in range(3)), on_gpu("amp_bf16", 0), lost])
    _, figure = panel(page_of(records, tmp_path), "train-loss")
    assert [trace["name"] for trace in figure["traces"] if trace.get("showlegend", True)] == ["fp32", "amp_bf16"]
    diverged = figure["traces"][-1]
    assert diverged["hovertemplate"].endswith("<extra>amp_bf16, seed 1, diverged</extra>")
    assert (diverged["y"][-1], diverged["line"]["dash"]) == (None, "dot")
    path = tmp_path / "amp_bf16-gpt_tiny-8-s1" / HISTORY_NAME
    path.write_text(re.sub(r'"train/loss": [^,}]+', '"train/loss": "Infinity"', path.read_text()))
    (tmp_path / "fp32-gpt_tiny-8-s0" / HISTORY_NAME).write_text('{"step": 5, "train/loss": 1.0}\nnot json\n')
    element, figure = panel(page_of(records, tmp_path), "train-loss")
    assert "amp_bf16: never a finite value (seed 1)" in element.text
    alone = [trace for trace in figure["traces"] if trace["meta"]["arm"] == "fp32" and "hovertemplate" in trace]
    assert len(alone) == 2


def test_the_speed_of_a_contaminated_run_is_in_no_panel(tmp_path):
    entries = [*sweep("fp32", [100.0, 100.0]), *sweep("amp_bf16", [50.0]), contaminated("amp_bf16", 1, step_ms=500.0)]
    for _, record in entries:
        record.summary["perf/samples_per_sec"] = 8000 / record.summary["perf/step_ms"]
    _, figure = panel(page_of(entries, tmp_path), "samples-per-sec")
    drawn = {arm: trace["x"] for arm, trace in by_arm(figure, mode="markers").items()}
    assert drawn == {"fp32": [80.0, 80.0], "amp_bf16": [160.0]}
    entries[2][1].contamination = entries[3][1].contamination
    page = page_of(entries, tmp_path)
    element, figure = panel(page, "samples-per-sec")
    assert {trace["meta"]["arm"] for trace in figure["traces"]} == {"fp32"}
    assert "amp_bf16: not measured, or nothing that counts." in element.text
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
    axes = {key: panel(gpu_page, key)[1]["layout"] for key in ("step-time", "power")}
    assert axes["step-time"]["yaxis"]["title"]["text"] == "step time (ms)"
    assert axes["power"]["xaxis"]["title"]["text"] == "power (W), median of runs"


def test_arms_of_one_mode_share_its_colour_and_differ_in_dash(write, tmp_path):
    arms = ["fp32", "amp_bf16", "amp_bf16+cache_enabled=false"]
    entries = [run(arm, seed, directory=f"run{index}-{seed}") for index, arm in enumerate(arms) for seed in range(3)]
    _, figure = panel(page_of(write(entries), tmp_path), "train-loss")
    lines = {trace["name"]: trace["line"] for trace in figure["traces"] if trace.get("showlegend", True)}
    plain, changed = lines["amp_bf16"], lines["amp_bf16+cache_enabled=false"]
    assert plain["color"] == changed["color"] == MODE_COLOURS["amp_bf16"]
    assert plain["dash"] != changed["dash"]
