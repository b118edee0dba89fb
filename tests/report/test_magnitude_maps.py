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


def test_each_cell_is_the_share_of_a_row():
    of = numerics(2)
    cell = cells(drawn(of))
    assert len(cell["z"]) == len(cell["y"]) == 6
    first = of.magnitudes[0]
    for place, count in enumerate(first.counts):
        if count:
            shown = cell["x"].index(first.first_exponent + place + 0.5)
            share = count / sum(first.counts)
            assert 10 ** cell["z"][0][shown] == pytest.approx(share, rel=0.02)


def test_gradients_are_moved_by_the_scale():
    alone = cells(drawn(numerics(2), "activation_gradient"))
    scaled = cells(drawn(numerics(2, scale=4096.0), "activation_gradient"))

    def ends(cell):
        return [cell["x"][place] for place, share in enumerate(cell["z"][0]) if share is not None]

    assert [x + 12 for x in ends(alone)] == ends(scaled)
    assert cells(drawn(numerics(2)))["z"] == cells(drawn(numerics(2, scale=4096.0)))["z"], "activations are not"
    assert "times the scale 4,096" in drawn(numerics(2, scale=4096.0), "gradient").x["title"]["text"]


def test_the_ranges_of_formats_are_drawn_where_they_are():
    traces = drawn(numerics(2)).plotly()["data"]
    lines = {(one["legendgroup"], one["line"]["dash"]): one for one in traces if one.get("mode") == "lines"}
    assert lines["float16", "solid"]["x"][0] == -14
    assert lines["float16", "solid"]["x"][3] == pytest.approx(16, abs=1e-3)
    assert lines["float16", "dot"]["x"][0] == -25
    assert lines["float8_e4m3fn", "dot"]["x"][0] == -10
    assert {name: one.get("visible", True) for (name, _), one in lines.items()} == {
        "float16": True,
        "float8_e4m3fn": "legendonly",
        "float8_e5m2": "legendonly",
    }


def test_magnitudes_beyond_bfloat16_bring_its_range_into_view():
    tiny = RunNumerics(magnitudes=[magnitudes("a", "weight", -124)])
    names = {one.get("name") for one in drawn(tiny, "weight").plotly()["data"]}
    assert "bfloat16" in names


def test_kinds_that_nobody_looked_at_have_no_map():
    assert drawn(RunNumerics(), "update") is None


def test_of_many_layers_the_first_are_drawn():
    figure = drawn(numerics(400))
    assert len(cells(figure)["z"]) == MAX_ROWS
    assert len(figure.table.rows) == 802, "the table has each"
    assert figure.remarks[0] == "The first 100 layers are drawn, 702 more are in the table."


def test_two_dtypes_of_one_layer_have_a_row_each():
    both = [magnitudes("a", "activation", 0), magnitudes("a", "activation", 8)]
    both[1].dtype = "float16"
    figure = drawn(RunNumerics(magnitudes=both))
    assert len(cells(figure)["z"]) == 2
    dtype = [column.title for column in figure.table.columns].index("dtype")
    assert [row.cells[dtype].text for row in figure.table.rows] == ["float32", "float16"]


def test_the_comparison_shows_numerics_of_each_arm(write, tmp_path):
    entries = write([on_gpu("fp32", 0), on_gpu("amp_fp16", 0), on_gpu("amp_fp16", 1)])
    directories = {(record.arm, record.identity.seed): path for path, record in entries}
    numerics(2).write(directories["fp32", 0])
    numerics(2, scale=4096.0).write(directories["amp_fp16", 1])
    page = read_page(html(document_of(entries, tmp_path)))
    section = page.one("section", id="numerics")
    headings = [one.text for one in section.all("h3")]
    assert [one.rpartition(": ")[2] for one in headings] == ["fp32, seed 0", "amp_fp16, seed 1"]
    _, figure = panel(page, "gradient", 1)
    assert "times the scale 4,096" in figure["layout"]["xaxis"]["title"]["text"]
    assert any(one.attributes.get("href") == "#numerics" for one in page.all("a"))


def test_a_comparison_without_numerics_has_no_such_section(write, tmp_path):
    page = read_page(html(document_of(write([on_gpu("fp32", 0)]), tmp_path)))
    assert not page.all("section", id="numerics")


def test_damaged_numerics_are_told(write, tmp_path):
    entries = write([on_gpu("fp32", 0)])
    (entries[0][0] / NUMERICS_NAME).write_text("{")
    page = read_page(html(document_of(entries, tmp_path)))
    assert "is not JSON" in page.one("section", id="numerics").text
