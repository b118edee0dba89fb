"""Heat maps of magnitudes, and numerics in a comparison."""

import pytest
from page_reader import panel, read_page
from shown_diagnoses import magnitudes, numerics
from shown_runs import document_of, on_gpu

from ampsweep.record.numerics import NUMERICS_NAME, RunNumerics
from ampsweep.report.figures.magnitude_map import MAX_ROWS, magnitude_map
from ampsweep.report.html import html


def drawn(of, kind="activation"):
    return magnitude_map(of, kind, title="A map", question="Does it fit?")


def cells(figure):
    return figure.plotly()["data"][0]


def test_a_cell_is_the_share_of_its_row():
    of = numerics(2)
    cell = cells(drawn(of))
    assert len(cell["z"]) == len(cell["y"]) == 6
    first = of.magnitudes[0]
    for place, count in enumerate(first.counts):
        if count:
            shown = cell["x"].index(first.first_exponent + place + 0.5)
            assert 10 ** cell["z"][0][shown] == pytest.approx(count / sum(first.counts), rel=0.02)


def test_gradients_are_multiplied_by_the_scale():
    alone = cells(drawn(numerics(2), "activation_gradient"))
    scaled = cells(drawn(numerics(2, scale=4096.0), "activation_gradient"))
    ends = [
        [x for x, share in zip(cell["x"], cell["z"][0], strict=True) if share is not None] for cell in (alone, scaled)
    ]
    assert [x + 12 for x in ends[0]] == ends[1]
    assert cells(drawn(numerics(2)))["z"] == cells(drawn(numerics(2, scale=4096.0)))["z"], "activations are not"
    assert "times the scale 4,096" in drawn(numerics(2, scale=4096.0), "gradient").x["title"]["text"]


def test_the_ranges_of_formats_are_lines():
    traces = drawn(numerics(2)).plotly()["data"]
    lines = {(trace["legendgroup"], trace["line"]["dash"]): trace for trace in traces if trace.get("mode") == "lines"}
    assert lines["float16", "solid"]["x"][0] == -14
    assert lines["float16", "solid"]["x"][3] == pytest.approx(16, abs=1e-3)
    assert (lines["float16", "dot"]["x"][0], lines["float8_e4m3fn", "dot"]["x"][0]) == (-25, -10)
    visible = {name: trace.get("visible", True) for (name, _), trace in lines.items()}
    assert visible == {"float16": True, "float8_e4m3fn": "legendonly", "float8_e5m2": "legendonly"}
    tiny = RunNumerics(magnitudes=[magnitudes("a", "weight", -124)])
    assert "bfloat16" in {trace.get("name") for trace in drawn(tiny, "weight").plotly()["data"]}


def test_the_first_of_many_layers_are_drawn_and_all_in_the_table():
    figure = drawn(numerics(400))
    assert len(cells(figure)["z"]) == MAX_ROWS == 100
    assert len(figure.table.rows) == 802
    assert figure.remarks[0] == "The first 100 layers are drawn, 702 more are in the table."
    both = [magnitudes("a", "activation", 0), magnitudes("a", "activation", 8)]
    both[1].dtype = "float16"
    figure = drawn(RunNumerics(magnitudes=both))
    dtype = [column.title for column in figure.table.columns].index("dtype")
    assert [row.cells[dtype].text for row in figure.table.rows] == ["float32", "float16"], "a row for each dtype"
    assert drawn(RunNumerics(), "update") is None


def test_a_comparison_has_the_numerics_of_each_arm(write, tmp_path):
    entries = write([on_gpu("fp32", 0), *(on_gpu("amp_fp16", seed) for seed in range(3))])
    assert not read_page(html(document_of(entries, tmp_path))).all("section", id="numerics")
    directories = {(record.arm, record.identity.seed): path for path, record in entries}
    numerics(2).write(directories["fp32", 0])
    numerics(2, scale=4096.0).write(directories["amp_fp16", 1])
    numerics(2).write(directories["amp_fp16", 2])
    page = read_page(html(document_of(entries, tmp_path)))
    headings = [heading.text for heading in page.one("section", id="numerics").all("h3")]
    assert [heading.rpartition(": ")[2] for heading in headings] == ["fp32, seed 0", "amp_fp16, seed 1"]
    _, figure = panel(page, "gradient", 1)
    assert "times the scale 4,096" in figure["layout"]["xaxis"]["title"]["text"]
    assert any(link.attributes.get("href") == "#numerics" for link in page.all("a"))
    (directories["fp32", 0] / NUMERICS_NAME).write_text("{")
    assert "is not JSON" in read_page(html(document_of(entries, tmp_path))).one("section", id="numerics").text
