import base64
import hashlib
import json
import math
import re

import plotly.graph_objects as go
import pytest
from page_reader import figures, panel, read_page
from shown_runs import GIB, document_of, like, memory, on_gpu
from synthetic_records import contaminated, failed, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.record import HISTORY_NAME
from ampsweep.report.html import html
from ampsweep.report.palette import CATEGORY_COLOURS, MODE_COLOURS


def page_of(records, directory):
    return read_page(html(document_of(records, directory)))


def problems(page):
    return page.one(class_="of-problems").one("table").rows()


@pytest.fixture
def page(write, gpu_runs, tmp_path):
    return page_of(write(gpu_runs), tmp_path)


def test_several_workloads_have_an_overview(page):
    rows = page.one(class_="of-overview").one("table").rows()
    assert [row["workload"] for row in rows] == ["batch_size 8", "batch_size 16"]
    assert all(row["train in"] == "amp_bf16" for row in rows)
    assert all("2.04x faster" in row["amp_bf16"] for row in rows)


def test_memory_is_stacked_with_the_predicted_beside_it(page):
    element, figure = panel(page, "memory-categories")
    bars = ["fp32", "fp32 (predicted)", "amp_bf16", "amp_bf16 (predicted)", "amp_fp16", "amp_fp16 (predicted)"]
    by_name = {trace["name"]: trace for trace in figure["traces"]}
    assert by_name["activations"]["y"] == bars
    for category, trace in ((one.replace(" ", "_"), trace) for one, trace in by_name.items()):
        assert trace["marker"]["color"] == CATEGORY_COLOURS[category]
        for bar, value in zip(bars, trace["x"], strict=True):
            size = memory(bar.partition(" ")[0], 8)[category]
            assert value * GIB == pytest.approx(size * (1.01 if "predicted" in bar else 1), abs=1)
    assert figure["layout"]["xaxis"]["title"]["text"] == "memory at the peak (GiB)"
    table = {row["arm"]: row for row in element.one("table").rows()}
    assert table["fp32"]["activations"] == "1.00 GiB"
    assert table["amp_bf16 (predicted)"]["all"].endswith("(+1.0%)")


def test_the_stack_adds_up_to_the_peak_with_its_workspaces(write, tmp_path):
    """The allocator's peak has 96 MiB more than the tensors of the traced step, the predicted one 80 MiB."""
    entries = [on_gpu(arm, seed) for arm in ("fp32", "amp_bf16") for seed in (0, 1, 2)]
    for _, record in entries:
        tensors = sum(record.memory.peak.values())
        more = 96 + 10 * (record.identity.seed - 1)
        record.summary["memory/peak_allocated_gib"] = (tensors + more * 2**20) / GIB
        record.prediction.allocator_peak_bytes = sum(record.prediction.peak.values()) + 80 * 2**20
    element, figure = panel(page_of(write(entries), tmp_path), "memory-categories")
    rest = next(trace for trace in figure["traces"] if trace["name"] == "unattributed")
    assert rest["text"] == ["96.0 MiB", "80.0 MiB", "96.0 MiB", "80.0 MiB"]
    peaks = [arm.peak_memory_bytes for arm in compare(entries, baseline="fp32", margin_pct=1.0).workloads[0].arms]
    drawn = [sum(trace["x"][bar] or 0 for trace in figure["traces"]) * GIB for bar in (0, 2)]
    assert drawn == pytest.approx(peaks)
    assert "unattributed: what the run's peak has besides" in element.text
    rows = element.one("table").rows()
    assert rows[0]["all"] == "3.22 GiB"
    assert rows[0]["unattributed"] == "96.0 MiB"


def test_a_legend_names_arms_and_a_pointer_runs(write, tmp_path):
    entries = [on_gpu("fp32", seed) for seed in range(3)] + [on_gpu("amp_bf16", 0)]
    lost = failed("amp_bf16", 1, "diverged", "the loss is nan", **like(entries[-1]))
    _, figure = panel(read_page(html(document_of(write([*entries, lost]), tmp_path))), "train-loss")
    named = [trace["name"] for trace in figure["traces"] if trace.get("showlegend", True)]
    assert named == ["fp32", "amp_bf16"]
    shown = [trace["hovertemplate"] for trace in figure["traces"] if "hovertemplate" in trace]
    assert shown[-1].endswith("<extra>amp_bf16, seed 1, diverged</extra>")


def test_figures_of_bars_stand_clear_of_the_dots(page):
    _, figure = panel(page, "samples-per-sec")
    (first, *_) = (trace for trace in figure["traces"] if trace.get("mode") == "text")
    end = figure["layout"]["xaxis"]["range"][1]
    assert (first["x"], first["textposition"], first["text"]) == ([end], "middle right", ["79.2 1/s"])
    assert end > max(x for trace in figure["traces"] if trace.get("mode") == "markers" for x in trace["x"])
    assert not any("text" in trace for trace in figure["traces"] if trace["type"] == "bar")


def test_pairs_show_each_pair_and_the_mean_with_its_interval(page, gpu_runs):
    arms = {arm.arm: arm for arm in compare(gpu_runs, baseline="fp32", margin_pct=1.0).workloads[0].arms}
    for key, estimate, scale in (("speedup", "speedup", 1.0), ("memory-saved", "memory_saved_bytes", 2**20)):
        _, figure = panel(page, key)
        for middle, dots in zip(figure["traces"][::2], figure["traces"][1::2], strict=True):
            arm = middle["meta"]["arm"]
            expected = getattr(arms[arm], estimate)
            assert middle["x"][0] == pytest.approx(expected.value / scale)
            assert len(dots["x"]) == expected.n
            assert middle["marker"]["color"] == dots["marker"]["color"] == MODE_COLOURS[arm]
            if expected.interval is not None:
                high = middle["x"][0] + middle["error_x"]["array"][0]
                low = middle["x"][0] - middle["error_x"]["arrayminus"][0]
                assert (low, high) == pytest.approx([end / scale for end in expected.interval])
            else:
                assert "error_x" not in middle


def test_the_loss_gap_lies_against_margin_and_interval(page, gpu_runs):
    verdicts = compare(gpu_runs, baseline="fp32", margin_pct=1.0).workloads[0].verdict.arms
    parity = verdicts[0].judgements.parities[0]
    element, figure = panel(page, "loss-gap")
    margins = [shape for shape in figure["layout"]["shapes"] if shape["type"] == "rect"]
    assert (margins[0]["x0"], margins[0]["x1"]) == pytest.approx((-parity.margin, parity.margin))
    decisive = next(trace for trace in figure["traces"] if trace["mode"] == "lines")
    assert decisive["x"] == pytest.approx([parity.low, parity.high])
    assert element.one("table").rows()[0]["parity"] == parity.verdict == "equivalent"


def test_curves_are_of_the_histories_with_a_band_over_seeds(page):
    _, figure = panel(page, "train-loss")
    of_arm = [trace for trace in figure["traces"] if trace["meta"]["arm"] == "fp32"]
    low, high, mean = (trace for trace in of_arm if "hovertemplate" not in trace)
    runs = [trace for trace in of_arm if "hovertemplate" in trace]
    assert len(runs) == 3
    assert runs[0]["x"] == mean["x"] == [5 * index for index in range(1, 9)]
    assert runs[1]["y"][0] == pytest.approx(4 * math.exp(-1 / 3) + 2.01, rel=1e-5)
    assert low["y"] == runs[0]["y"]
    assert high["y"] == runs[2]["y"]
    assert mean["y"] == pytest.approx(runs[1]["y"], rel=1e-5)
    assert figure["layout"]["xaxis"]["title"]["text"] == "step"


def test_the_scale_is_shown_of_the_arms_that_have_one(page):
    element, figure = panel(page, "scale")
    assert {trace["meta"]["arm"] for trace in figure["traces"]} == {"amp_fp16"}
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert "fp32, amp_bf16: not logged" in element.text


def test_memory_against_size_marks_where_it_ran_out(page):
    element, figure = panel(page, "memory-against-size")
    lines = {trace["meta"]["arm"]: trace for trace in figure["traces"] if trace["mode"] == "lines+markers"}
    assert lines["fp32"]["x"] == [8, 16]
    assert [value * GIB for value in lines["fp32"]["y"]] == pytest.approx(
        [sum(memory("fp32", size).values()) for size in (8, 16)]
    )
    (cross,) = [trace for trace in figure["traces"] if trace["mode"] == "markers"]
    assert (cross["meta"]["arm"], cross["x"]) == ("amp_fp16", [16])
    assert "amp_fp16 ran out of memory at batch size 16" in element.text
    assert element.one("table").rows()[0] == {
        "batch size": "8",
        "fp32": "3.13 GiB",
        "amp_bf16": "2.88 GiB",
        "amp_fp16": "2.88 GiB",
    }


def test_a_panel_without_figures_is_left_out(write, tmp_path):
    page = page_of(write([*sweep("fp32", [1.0] * 3), *sweep("amp_bf16", [1.0] * 3)]), tmp_path)
    assert page.all("figure", data_key="loss-gap")
    assert not page.all("figure", data_key="power")
    assert not page.all("section", id="series")


def test_each_arm_has_a_button_unless_it_is_alone(page, tmp_path):
    assert [button.text for button in page.all("button", class_="arm")] == ["fp32", "amp_bf16", "amp_fp16"]
    assert not read_page(html(document_of([run("fp32")], tmp_path))).all("form")


def test_axes_have_units(page):
    for element in page.all("figure"):
        (plot,) = [one for one in element.all("div") if "data-figure" in one.attributes]
        figure = figures(page)[int(plot.attributes["data-figure"])]
        for axis in ("xaxis", "yaxis"):
            described = figure["layout"][axis]
            assert described.get("type") == "category" or described["title"]["text"]
    _, step_time = panel(page, "step-time")
    assert step_time["layout"]["yaxis"]["title"]["text"] == "step time (ms)"
    _, power = panel(page, "power")
    assert power["layout"]["xaxis"]["title"]["text"] == "power (W), median of runs"


def test_every_figure_is_one_that_plotly_accepts(page):
    for figure in figures(page):
        go.Figure(data=figure["traces"], layout=figure["layout"])


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a&amp;b", "עברית"])
def test_names_with_markup_stay_text(write, tmp_path, hostile):
    entries = [
        run(arm, 0, facts={"model": hostile}, directory=f"run{index}", wandb={"url": f"javascript:{hostile}"})
        for index, arm in enumerate(("fp32", hostile))
    ]
    entries.append(failed("amp_fp16", 0, "failed", hostile, facts={"model": hostile}))
    text = html(document_of(write(entries), tmp_path))
    page = read_page(text)
    assert page.one("section", id="verdict").one("article").one("h3").text.startswith(f"model {hostile}")
    assert len(page.all("script")) == 4
    assert not page.all("img")
    assert all(not link.attributes["href"].startswith("javascript:") for link in page.all("a"))
    assert hostile in [row["why"] for row in problems(page)]
    for figure in figures(page):
        for trace in figure["traces"]:
            drawn = json.dumps([trace.get(key) for key in ("name", "x", "y", "text", "hovertext")])
            assert "<script" not in drawn
            assert "<img" not in drawn
        assert "<script" not in json.dumps(figure["layout"])


def test_nothing_is_fetched_and_only_its_own_scripts_may_run(write, gpu_runs, tmp_path):
    text = html(document_of(write(gpu_runs), tmp_path))
    page = read_page(text)
    for element in page.all():
        assert "src" not in element.attributes
        if element.name == "link" or (element.name != "a" and "href" in element.attributes):
            raise AssertionError(element)
    policy = page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert len(scripts) == 3
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_an_unreadable_history_is_named_and_the_rest_shown(write, gpu_runs, tmp_path):
    records = write(gpu_runs)
    (tmp_path / "fp32-gpt_tiny-8-s0" / HISTORY_NAME).write_text('{"step": 5, "train/loss": 1.0}\nnot json\n')
    page = page_of(records, tmp_path)
    (row,) = [row for row in problems(page) if row["problem"] == "no history"]
    assert (row["arm"], row["seeds"], row["consequence"]) == ("fp32", "0", "no curves, no time to a loss")
    assert row["why"] == "fp32-gpt_tiny-8-s0/history.jsonl is damaged: line 2 is not JSON"
    _, figure = panel(page, "train-loss")
    alone = [one for one in figure["traces"] if one["meta"]["arm"] == "fp32" and "hovertemplate" in one]
    assert len(alone) == 2


def test_losses_that_are_not_finite_are_gaps(write, tmp_path):
    entries = [*sweep("fp32", [1.0] * 3), failed("amp_fp16", 0, "diverged", "the training loss is nan at step 40")]
    records = write(entries)
    _, figure = panel(page_of(records, tmp_path), "train-loss")
    (diverged,) = [trace for trace in figure["traces"] if trace["meta"]["arm"] == "amp_fp16"]
    assert diverged["y"][-1] is None
    assert diverged["line"]["dash"] == "dot"
    lost = tmp_path / "amp_fp16-gpt_tiny-8-s0" / HISTORY_NAME
    lost.write_text(re.sub(r'"train/loss": [^,}]+', '"train/loss": "Infinity"', lost.read_text()))
    element, _ = panel(page_of(records, tmp_path), "train-loss")
    assert "amp_fp16: never a finite value (seed 0)" in element.text


def test_the_speed_of_a_contaminated_run_is_in_no_panel(write, tmp_path):
    entries = [*sweep("fp32", [100.0, 100.0]), *sweep("amp_bf16", [50.0]), contaminated("amp_bf16", 1, step_ms=500.0)]
    for _, record in entries:
        record.summary["perf/samples_per_sec"] = 8000 / record.summary["perf/step_ms"]
    records = write(entries)
    element, figure = panel(page_of(records, tmp_path), "samples-per-sec")
    drawn = {trace["meta"]["arm"]: trace["x"] for trace in figure["traces"] if trace.get("mode") == "markers"}
    assert drawn == {"fp32": [80.0, 80.0], "amp_bf16": [160.0]}
    (_, free), (_, disturbed) = [entry for entry in records if entry[1].arm == "amp_bf16"]
    free.contamination = disturbed.contamination
    element, figure = panel(page_of(records, tmp_path), "samples-per-sec")
    assert {trace["meta"]["arm"] for trace in figure["traces"]} == {"fp32"}
    assert "amp_bf16: not measured, or nothing that counts." in element.text


def test_colours_are_the_modes_own_everywhere(page):
    for figure in figures(page):
        for trace in figure["traces"]:
            arm = trace["meta"].get("arm")
            colours = {trace.get("marker", {}).get("color"), trace.get("line", {}).get("color")} - {None}
            if arm is not None:
                assert colours <= {MODE_COLOURS[arm]}


def test_arms_of_one_mode_share_its_colour_and_differ_otherwise(write, tmp_path):
    arms = ["fp32", "amp_bf16", "amp_bf16+cache_enabled=false"]
    entries = [run(arm, seed, directory=f"run{index}-{seed}") for index, arm in enumerate(arms) for seed in range(3)]
    _, figure = panel(page_of(write(entries), tmp_path), "train-loss")
    lines = {trace["name"]: trace["line"] for trace in figure["traces"] if trace.get("showlegend", True)}
    plain, changed = lines["amp_bf16"], lines["amp_bf16+cache_enabled=false"]
    assert plain["color"] == changed["color"] == MODE_COLOURS["amp_bf16"]
    assert plain["dash"] != changed["dash"]


def test_the_page_can_be_used_by_keyboard_and_without_scripts(page):
    assert page.all("a", class_="skip")[0].attributes["href"] == "#verdict"
    targets = {one.attributes.get("id") for one in page.all()}
    for link in page.one("nav").all("a"):
        assert link.attributes["href"].removeprefix("#") in targets
    for element in page.all("figure"):
        assert element.all("table"), "what is drawn stands in a table too"
    for scrolling in page.all(class_="scroll"):
        assert scrolling.attributes["tabindex"] == "0"
        assert scrolling.attributes["aria-label"]
    assert page.one("html").attributes["lang"] == "en"


def test_two_hundred_runs_stay_under_ten_megabytes(tmp_path, write):
    entries = [
        on_gpu(arm, seed, batch_size=size, step_ms=50.0 + seed, directory=f"{arm}-{size}-{seed}")
        for arm in ("fp32", "amp_bf16", "amp_fp16", "tf32")
        for size in (8, 16, 32, 64, 128)
        for seed in range(10)
    ]
    records = write(entries)
    rows = [{"step": step, "train/loss": 1 / step, "perf/step_ms": 10 + math.sin(step)} for step in range(1, 501)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for directory, _ in records:
        (directory / HISTORY_NAME).write_text(text)
    document = html(document_of(records, tmp_path))
    assert len(document.encode()) < 10e6
    element, figure = panel(read_page(document), "train-loss")
    assert max(len(trace["x"]) for trace in figure["traces"]) <= 300
    assert "are thinned to" in element.text
    assert min(min(trace["y"]) for trace in figure["traces"]) == pytest.approx(1 / 500), "no extreme is lost"
