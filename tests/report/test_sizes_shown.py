"""A sweep over sizes in every document: the panels over a size, its table, and what multiples of 8 gain."""

import io

import pytest
from page_reader import panel, read_page
from rich.console import Console
from shown_runs import dashboard_of, on_gpu

from ampsweep.report.console import print_comparison
from ampsweep.report.markdown import markdown, verdict_markdown
from ampsweep.report.page.document import html
from ampsweep.report.wandb.comparison_page import comparison_page

SPEEDUPS = {1023: [1.0, 1.1, 1.05], 1024: [2.0, 2.1, 2.05], 512: [1.5, 1.5, 1.5], 511: [1.4, 1.6, 1.5], 100: [1.0] * 3}
SENTENCES = [
    "amp_bf16 at 1023 has 0.512 [0.483, 0.542] of the speedup at 1024 (n=3)",
    "amp_bf16: what multiples of 8 gain cannot be decided at 511 (0.999x [0.846, 1.179] of the speedup at 512, n=3)",
    "What multiples of 8 gain cannot be decided at 100: none within 5% was measured beside it",
]


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
def dashboard(entries, write, tmp_path):
    return dashboard_of(write(entries), tmp_path)


def test_a_panel_has_the_speedup_over_the_size(dashboard):
    page = read_page(html(dashboard))
    element, figure = panel(page, "a0-speedup-against-size")
    (line,) = figure["traces"]
    assert line["meta"]["arm"] == "amp_bf16"
    assert line["x"] == [100, 511, 512, 1023, 1024]
    assert line["y"] == pytest.approx([1.0, 1.4978, 1.5, 1.0492, 2.0496], rel=1e-3)
    assert line["marker"]["symbol"] == ["diamond-open", "diamond-open", "diamond", "diamond-open", "diamond"]
    assert figure["layout"]["legend"]["title"]["text"] == "open: no multiple of 8"
    low, high = line["y"][-1] - line["error_y"]["arrayminus"][-1], line["y"][-1] + line["error_y"]["array"][-1]
    assert (low, high) == pytest.approx((1.931, 2.176), rel=1e-3)
    assert line["hovertext"][-1] == "1024: 2.05x [1.93, 2.18], n=3"
    axes = [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert axes == ["model.hidden_size", "step time, baseline over arm (x)"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["100", "511<br>512", "1023<br>1024"]
    assert element.one("table").rows()[-1] == {
        "model.hidden_size": "1024",
        "multiple of 8": "yes",
        "amp_bf16": "2.05x [1.93, 2.18], n=3",
    }


def test_a_chosen_seed_has_points_of_its_own(dashboard):
    _, figure = panel(read_page(html(dashboard)), "a0-speedup-against-size")
    of_seeds = figure["traces"][0]["meta"]["by_seed"]
    assert of_seeds["seeds"] == [0, 1, 2]
    assert of_seeds["y"][1] == pytest.approx([1.0, 1.6, 1.5, 1.1, 2.1])
    assert of_seeds["symbol"][1] == figure["traces"][0]["marker"]["symbol"]


def test_memory_saved_is_over_the_size_too(dashboard):
    _, figure = panel(read_page(html(dashboard)), "a0-memory-saved-against-size")
    assert figure["layout"]["yaxis"]["title"]["text"] == "peak allocated saved (%)"
    assert figure["traces"][0]["y"] == pytest.approx([100 * (3.125 - 2.875) / 3.125] * 5, rel=1e-3)


def test_sizes_of_one_kind_are_not_drawn_apart(entries, write, tmp_path):
    page = read_page(
        html(
            dashboard_of(write([one for one in entries if "-1024-" in one[0].name or "-512-" in one[0].name]), tmp_path)
        )
    )
    element, figure = panel(page, "a0-speedup-against-size")
    assert "legend" not in figure["layout"]
    assert list(element.one("table").rows()[0]) == ["model.hidden_size", "amp_bf16"]


def test_a_panel_without_figures_over_sizes_says_why(entries, write, tmp_path):
    for _, record in entries:
        record.contamination.verdict, record.contamination.reasons = "contaminated", ["a neighbour"]
    section = read_page(html(dashboard_of(write(entries), tmp_path))).one("section", id="against-size")
    assert (
        "Speedup against size: no arm has a pair of runs with the baseline that measured perf/step_ms." in section.text
    )
    assert not section.all("figure", id="a0-speedup-against-size")
    assert section.all("figure", id="a0-memory-saved-against-size")


def test_every_document_says_what_multiples_of_8_gain(dashboard, entries, tmp_path):
    comparison = dashboard.comparison
    stream = io.StringIO()
    print_comparison(comparison, Console(file=stream, width=200))
    documents = {
        "page": read_page(html(dashboard)).one("section", id="against-size").text,
        "console": " ".join(stream.getvalue().split()),
        "markdown": markdown(comparison, (), [one.shown for one in dashboard.series]),
        "report on W&B": verdict_markdown(comparison),
    }
    for name, text in documents.items():
        assert "Against model.hidden_size" in text, name
        for sentence in SENTENCES:
            assert f"{sentence}." in text.replace("\\", ""), name


def test_wandb_has_the_panels_the_table_and_the_sentences(dashboard, entries, tmp_path):
    page = comparison_page(dashboard, entries, group=None, html=tmp_path / "comparison.html")
    assert any(key.startswith("panels across/speedup-against-size") for key in page.figures)
    table = page.tables["sizes"]
    row = dict(
        zip(table.columns, next(row for row in table.rows if row[1] == 1023 and row[3] == "amp_bf16"), strict=True)
    )
    assert row["multiple_of_8"] is False
    assert row["speedup"] == pytest.approx(1.0492, rel=1e-3)
    assert page.summary["sizes"].startswith(f"Against model.hidden_size: {SENTENCES[0]}. {SENTENCES[1]}.")
