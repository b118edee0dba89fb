"""A sweep over a size in documents: the panels over it, with a table each."""

import pytest
from page_reader import panel, read_page
from shown_runs import document_of, on_gpu

from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.wandb.send_comparison import wandb_page

SPEEDUPS = {1023: [1.0, 1.1, 1.05], 1024: [2.0, 2.1, 2.05], 512: [1.5, 1.5, 1.5], 511: [1.4, 1.6, 1.5], 100: [1.0] * 3}


def sized(arm, seed, hidden, speedup):
    directory, record = on_gpu(
        arm, seed, step_ms=100.0 / speedup if arm != "fp32" else 100.0, pair_key=f"{hidden} {seed}"
    )
    record.config["model"] = {"hidden_size": hidden}
    record.identity.model_size = hidden**2
    return directory.with_name(f"{arm}-{hidden}-s{seed}"), record


@pytest.fixture
def entries():
    return [
        sized(arm, seed, hidden, speedup)
        for hidden, speedups in SPEEDUPS.items()
        for seed, speedup in enumerate(speedups)
        for arm in ("fp32", "amp_bf16")
    ]


@pytest.fixture
def document(entries, write, tmp_path):
    return document_of(write(entries), tmp_path)


def test_a_panel_has_the_speedup_over_the_size(document):
    page = read_page(html(document))
    element, figure = panel(page, "speedup-against-size")
    (line,) = figure["traces"]
    assert line["meta"]["arm"] == "amp_bf16"
    assert line["x"] == [100, 511, 512, 1023, 1024]
    assert line["y"] == pytest.approx([1.0, 1.4978, 1.5, 1.0492, 2.0496], rel=1e-3)
    low, high = line["y"][-1] - line["error_y"]["arrayminus"][-1], line["y"][-1] + line["error_y"]["array"][-1]
    assert (low, high) == pytest.approx((1.931, 2.176), rel=1e-3)
    assert line["hovertext"][-1] == "1024: 2.05x [1.93, 2.18]"
    axes = [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert axes == ["model.hidden_size", "step time, baseline over arm (x)"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["100", "511", "512", "1023", "1024"]
    assert element.one("table").rows()[-1] == {
        "model.hidden_size": "1024",
        "amp_bf16": "2.05x [1.93, 2.18]",
    }


def test_memory_saved_is_over_the_size_too(document):
    _, figure = panel(read_page(html(document)), "memory-saved-against-size")
    assert figure["layout"]["yaxis"]["title"]["text"] == "peak allocated saved (%)"
    assert figure["traces"][0]["y"] == pytest.approx([100 * (3.125 - 2.875) / 3.125] * 5, rel=1e-3)


def test_a_panel_without_figures_over_sizes_is_left_out(entries, write, tmp_path):
    for _, record in entries:
        record.contamination.verdict, record.contamination.reasons = "contaminated", ["a neighbour"]
    section = read_page(html(document_of(write(entries), tmp_path))).one("section", id="series")
    assert not section.all("figure", data_key="speedup-against-size")
    assert section.all("figure", data_key="memory-saved-against-size")


def test_every_format_has_the_series(document, tmp_path):
    assert "Against model.hidden\\_size" in markdown(document) or "Against model.hidden_size" in markdown(document)
    page = wandb_page(document, id="a", name="a", config={}, tags=[], html=tmp_path / "comparison.html")
    assert "panels/speedup-against-size" in page.figures
