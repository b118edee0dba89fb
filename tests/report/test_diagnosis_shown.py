"""A diagnosis as a document, in every format."""

import json

import pytest
from page_reader import figures, panel, read_page
from shown_diagnoses import LONG_MODULE, ShownMarkup, diagnosis, numerics
from shown_runs import printed

from ampsweep.doctor.diagnosis import Change, Diagnosis, in_order
from ampsweep.doctor.diagnosis_document import diagnosis_document
from ampsweep.redaction import hidden
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown


@pytest.fixture(scope="module")
def page():
    return read_page(html(diagnosis_document(diagnosis(), numerics(scale=4096.0))))


def empty(**more):
    return Diagnosis(arm="amp_bf16", model="mlp", data="digits", device="cpu", device_name="a CPU", **more)


def test_a_diagnosis_as_markdown(golden):
    golden("diagnosis.md", markdown(diagnosis_document(diagnosis(), None)).partition("## Numerics")[0])
    fenced = empty(findings=[ShownMarkup(change=Change(code="a = '```'"))])
    assert "````\na = '```'\n````" in markdown(diagnosis_document(fenced, None))


def test_a_page_has_the_findings_with_code_to_copy(page):
    found = page.one("section", id="findings").all("article")
    assert [finding.one("h3").text.partition(".")[0] for finding in found] == [str(number) for number in range(1, 6)]
    mismatch, overflow, markup, *priced = found
    assert [item.text for item in mismatch.all("li")][:3] == [
        *("module decoder.head", "operator aten.addmm", "at nets.py, line 41")
    ]
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
    _, drawn = panel(read_page(html(diagnosis_document(empty(), sick))), "activation")
    assert drawn["layout"]["yaxis"]["ticktext"][0].startswith("&lt;img")


def test_losses_and_errors_are_drawn_with_gaps_where_not_finite(page):
    _, drawn = panel(page, "error-growth")
    explained, own = drawn["traces"]
    assert drawn["layout"]["yaxis"]["type"] == "log"
    assert len(own["y"]) == len(explained["y"]) == 96
    assert own["hovertext"][61] == "transformer.layers.7.linear: aten.addmm"
    assert own["y"][60] < explained["y"][60] < own["y"][61]
    card, drawn = panel(page, "losses")
    baseline, own = drawn["traces"]
    assert (own["name"], own["y"][19:]) == ("amp_fp16", [None] * 31)
    assert None not in [own["y"][18], *baseline["y"]]
    assert "The loss of amp_fp16 is nan from step 20 on." in card.text
    sick = diagnosis()
    growth = sick.facts["numerics/error_growth"]
    growth[10]["error"], growth[11]["error"] = float("inf"), float("nan")
    card, drawn = panel(read_page(html(diagnosis_document(sick, None))), "error-growth")
    assert drawn["traces"][1]["y"][9:12] == [pytest.approx(1e-4 * 1.05**9), None, None]
    assert "values that are not finite" in card.text


def test_the_headroom_precedes_the_maps(page):
    section = page.one("section", id="numerics")
    assert section.one("ul").all("li")[0].text.startswith("float16 works with scales from")
    maps = [figure.attributes["data-key"] for figure in section.all("figure")]
    assert maps == ["activation", "activation_gradient", "gradient", "weight", "update"]


def test_a_diagnosis_without_findings_is_short():
    document = diagnosis_document(empty(seconds=3.0), None)
    text = html(document)
    assert len(text) < 60_000, "without figures there is no plotly"
    page = read_page(text)
    assert page.one("p", class_="headline").text == "Nothing found, 3.0 s."
    assert figures(page) == []
    assert "Nothing found, 3.0 s." in printed(document)


def test_no_format_has_secrets():
    key = "a" * 8 + "0123456789abcdef" * 2
    sick = hidden(empty(findings=[ShownMarkup(change=Change(overrides=[f"tracking.api_key={key}"]))]))
    document = diagnosis_document(sick, None)
    assert key not in html(document) + printed(document) + markdown(document)


@pytest.mark.parametrize("width", [50, 80, 120])
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


def test_the_json_has_facts_and_sentences():
    content = diagnosis_document(diagnosis(), None).data
    mismatch = json.loads(json.dumps(content))["findings"][0]
    assert (mismatch["kind"], mismatch["modules"]) == ("shown_mismatch", ["decoder.head"])
    assert mismatch["change"] == {"overrides": [], "code": "hidden = hidden.to(self.head.weight.dtype)"}
    assert mismatch["headline"].startswith("aten.addmm gets")
    assert mismatch["sentences"]["evidence"][1] == "its input is float32"
    kinds = [finding["kind"] for finding in content["findings"]]
    assert kinds == [finding.kind() for finding in in_order(diagnosis().findings)]
