"""A diagnosis as a document in every format; heat maps of magnitudes, which a comparison has too."""

import json

import pytest
from page_reader import drawn, panel, read_page
from shown_diagnoses import LONG_MODULE, ShownMarkup, diagnosis, magnitudes, numerics
from shown_runs import document_of, on_gpu, printed

from ampsweep.doctor.diagnosis import Change, Diagnosis, in_order
from ampsweep.doctor.diagnosis_document import diagnosis_document
from ampsweep.records.numerics import NUMERICS_NAME, RunNumerics
from ampsweep.redaction import hidden
from ampsweep.report.figures.magnitude_map import MAX_ROWS, magnitude_map
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown


@pytest.fixture(scope="module")
def page():
    return read_page(html(diagnosis_document(diagnosis(), numerics(scale=4096.0))))


def empty(**more):
    return Diagnosis(arm="amp_bf16", model="mlp", data="digits", device="cpu", device_name="a CPU", **more)


def test_a_diagnosis_as_markdown_and_json(golden):
    document = diagnosis_document(diagnosis(), None)
    golden("diagnosis.md", markdown(document).partition("## Numerics")[0])
    fenced = empty(findings=[ShownMarkup(change=Change(code="a = '```'"))])
    assert "````\na = '```'\n````" in markdown(diagnosis_document(fenced, None))
    findings = json.loads(json.dumps(document.data))["findings"]
    assert [finding["kind"] for finding in findings] == [finding.kind() for finding in in_order(diagnosis().findings)]
    mismatch = findings[0]
    assert (mismatch["kind"], mismatch["modules"]) == ("shown_mismatch", ["decoder.head"])
    assert mismatch["change"] == {"overrides": [], "code": "hidden = hidden.to(self.head.weight.dtype)", "words": None}
    assert mismatch["headline"].startswith("aten.addmm gets")
    assert mismatch["sentences"]["evidence"][1] == "its input is float32"


def test_a_page_has_the_findings_with_code_to_copy(page):
    mismatch, overflow, markup, *priced = page.one("section", id="findings").all("article")
    assert mismatch.all("li")[1].text == "operator aten.addmm"
    assert "▲" in mismatch.text
    assert "▼" in overflow.text
    assert markup.one("h3").text.startswith("3. <b>unknown</b> kind & more.")
    assert "<script>alert(1)</script>" in markup.text
    badges = [finding.one("h3").one("span", class_="word").text for finding in priced]
    assert badges == ["▼ 38.8% of the step's time", "▼ 12.0% of the peak memory"]
    buttons = [button for button in page.all("button", type="button") if "data-copy" in button.attributes]
    assert len(buttons) == 3
    assert all(page.one("code", id=button.attributes["data-copy"]).text for button in buttons)
    sick = numerics(1)
    sick.magnitudes[0].layer = sick.magnitudes[4].layer = "<img src=x onerror=alert(1)>"
    _, figure = panel(read_page(html(diagnosis_document(empty(), sick))), "activation")
    assert figure["layout"]["yaxis"]["ticktext"][0].startswith("&lt;img")


def test_losses_and_errors_are_drawn_with_gaps_where_not_finite(page, golden):
    golden("losses_of_a_diagnosis.txt", drawn(*panel(page, "losses")) + "\n")


def test_the_headroom_precedes_the_maps(page):
    section = page.one("section", id="numerics")
    assert section.one("ul").all("li")[0].text.startswith("float16 has the range with scales from")
    maps = [figure.attributes["data-key"] for figure in section.all("figure")]
    assert maps == ["activation", "activation_gradient", "gradient", "weight", "update"]


def test_a_diagnosis_without_findings_is_short():
    document = diagnosis_document(empty(seconds=3.0), None)
    assert len(html(document)) < 60_000, "without figures there is no plotly"
    assert read_page(html(document)).one("p", class_="headline").text == "Nothing found, 3.0 s."
    assert "Nothing found, 3.0 s." in printed(document)


def test_no_format_has_secrets():
    key = "a" * 8 + "0123456789abcdef" * 2
    sick = hidden(empty(findings=[ShownMarkup(change=Change(overrides=[f"tracking.api_key={key}"]))]))
    document = diagnosis_document(sick, None)
    assert key not in html(document) + printed(document) + markdown(document)


@pytest.mark.parametrize("width", [50, 120])
def test_a_terminal_folds_all_but_code_and_cannot_be_controlled(width):
    sick = diagnosis()
    sick.findings[0].modules[0] = "\x1b[2Jhead"
    text = printed(diagnosis_document(sick, None), width, is_terminal=True)
    long = [line for line in text.splitlines() if len(line) > width]
    assert [line for line in long if LONG_MODULE not in line and "=" not in line] == []
    assert "\x1b" not in text
    words = " ".join(text.split())
    assert "\\x1b[2Jhead" in words
    assert "5 findings, memory not examined, 50 steps replayed at most, 41 s." in words


def map_of(magnitudes, kind="activation"):
    return magnitude_map(RunNumerics(magnitudes=magnitudes), kind, title="A map", question="Does it fit?")


def test_a_comparison_has_the_numerics_of_each_arm(write, tmp_path, golden):
    entries = write([on_gpu("fp32", 0), *(on_gpu("amp_fp16", seed) for seed in range(3))])
    assert not read_page(html(document_of(entries, tmp_path))).all("section", id="numerics")
    directories = {(record.arm, record.identity.seed): path for path, record in entries}
    numerics(1).write(directories["fp32", 0])
    numerics(1, scale=4096.0).write(directories["amp_fp16", 1])
    numerics(1).write(directories["amp_fp16", 2])
    page = read_page(html(document_of(entries, tmp_path)))
    headings = [heading.text for heading in page.one("section", id="numerics").all("h3")]
    assert [heading.rpartition(": ")[2] for heading in headings] == ["fp32, seed 0", "amp_fp16, seed 1"]
    maps = [drawn(*panel(page, kind, place)) for kind in ("activation", "activation_gradient") for place in (0, 1)]
    golden("magnitudes.txt", "\n\n".join(maps) + "\n")
    assert any(link.attributes.get("href") == "#numerics" for link in page.all("a"))
    (directories["fp32", 0] / NUMERICS_NAME).write_text("{")
    assert "is not JSON" in read_page(html(document_of(entries, tmp_path))).one("section", id="numerics").text


def test_the_first_of_many_layers_are_drawn_and_all_in_the_table():
    figure = map_of(numerics(400).magnitudes)
    assert len(figure.plotly()["data"][0]["z"]) == MAX_ROWS == 100
    assert len(figure.table.rows) == 802
    assert figure.remarks[0] == "The first 100 layers are drawn, 702 more are in the table."


def test_a_layer_of_several_dtypes_and_the_range_of_bfloat16():
    both = [magnitudes("a", "activation", 0), magnitudes("a", "activation", 8)]
    both[1].dtype = "float16"
    table = map_of(both).table
    dtype = [column.title for column in table.columns].index("dtype")
    assert [row.cells[dtype].text for row in table.rows] == ["float32", "float16"], "a row for each dtype"
    tiny = map_of([magnitudes("a", "weight", -124)], "weight")
    assert "bfloat16" in {trace.get("name") for trace in tiny.plotly()["data"]}
    assert map_of([], "update") is None
