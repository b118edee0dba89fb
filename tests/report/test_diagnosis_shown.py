"""A diagnosis as a document, in every format."""

import io
import json
import re

import pytest
from page_reader import figures, panel, read_page
from shown_diagnoses import LONG_MODULE, ShownEps, diagnosis, numerics

from ampsweep.doctor.diagnosis import Change, Diagnosis, in_order
from ampsweep.doctor.diagnosis_document import diagnosis_document
from ampsweep.redaction import hidden
from ampsweep.report.console import show
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.terminal import Terminal


@pytest.fixture(scope="module")
def page():
    return read_page(html(diagnosis_document(diagnosis(), numerics(scale=4096.0))))


def empty(**more):
    return Diagnosis(arm="amp_bf16", model="mlp", data="digits", device="cpu", device_name="a CPU", **more)


def printed(of, width=80):
    stream = io.StringIO()
    show(diagnosis_document(of, None), Terminal(file=stream, width=width, force_terminal=True, color_system=None))
    return stream.getvalue()


def test_findings_stand_in_their_order_with_all_they_tell(page):
    found = page.one("section", id="findings").all("article")
    assert [one.one("h3").text.partition(".")[0] for one in found] == [str(number) for number in range(1, 9)]
    mismatch, overflow, eps, *_ = found
    assert mismatch.one("h3").text.startswith("1. aten.addmm gets float32"), "an operator's name stays as it is"
    places = [one.text for one in mismatch.all("li")][:3]
    assert places == ["module decoder.head", "operator aten.addmm", "at nets.py, line 41"]
    assert mismatch.one("pre").text == "hidden = hidden.to(self.head.weight.dtype)"
    assert "seen The largest score is 113,220 in step 3, float16 ends at 65,504." in overflow.text
    assert overflow.one("pre").text == f"'precision.fp32_modules=[{LONG_MODULE}]' precision.init_scale=1024"
    assert re.search("tried ▲ +The loss follows", overflow.text)
    assert re.search("tried ▼ +The loss is still not finite", eps.text)


def test_a_price_says_what_it_is_a_share_of(page):
    badges = [
        one.one("h3").one("span", class_="word").text for one in page.one("section", id="findings").all("article")
    ]
    assert [one.removeprefix("▼ ") for one in badges[4:]] == [
        "38.8% of the step's time",
        "21.0% of the step's time",
        "12.0% of the peak memory",
        "3.5% of the step's time",
    ]


def test_code_has_a_button_that_copies_it(page):
    buttons = [one for one in page.all("button", type="button") if "data-copy" in one.attributes]
    assert all(page.one("code", id=one.attributes["data-copy"]).text for one in buttons)
    assert len(buttons) == 5


def test_markup_in_names_is_text(page):
    unknown = page.one("section", id="findings").all("article")[3]
    assert unknown.one("h3").text.startswith("4. <b>unknown</b> kind & more.")
    assert "<script>alert(1)</script>" in unknown.text
    sick = numerics(1)
    sick.magnitudes[0].layer = sick.magnitudes[4].layer = "<img src=x onerror=alert(1)>"
    _, drawn = panel(read_page(html(diagnosis_document(empty(), sick))), "activation")
    assert drawn["layout"]["yaxis"]["ticktext"][0].startswith("&lt;img")


def test_facts_have_their_units(page):
    table = page.one("section", id="facts").one("table")
    rows = {(row["complaint"], row["figure"]): row["value"] for row in table.rows()}
    assert rows["speed", "bound"] == "2.31x"
    assert rows["speed", "step"] == "8.20 ms"
    assert rows["speed", "is compiled"] == "no"
    assert rows["memory", "peak"] == "81.0 MiB"
    assert rows["numerics", "tolerance"] == "0.40%"
    assert rows["loss", "modules"] == "a, b"
    assert ("numerics", "error growth") not in rows, "it is drawn"


def test_the_growth_of_the_error_is_drawn_on_a_log_axis(page):
    _, drawn = panel(page, "error-growth")
    explained, own = drawn["traces"]
    assert drawn["layout"]["yaxis"]["type"] == "log"
    assert len(own["y"]) == len(explained["y"]) == 96
    assert own["hovertext"][61] == "transformer.layers.7.linear: aten.addmm"
    assert own["y"][60] < explained["y"][60] < own["y"][61]


def test_a_loss_that_is_not_finite_ends_its_line(page):
    card, drawn = panel(page, "losses")
    baseline, own = drawn["traces"]
    assert own["name"] == "amp_fp16"
    assert own["y"][18] is not None
    assert own["y"][19:] == [None] * 31
    assert None not in baseline["y"]
    assert "The loss of amp_fp16 is nan from step 20 on." in card.text


def test_values_that_are_not_finite_are_gaps():
    sick = diagnosis()
    growth = sick.facts["numerics/error_growth"]
    assert isinstance(growth, list)
    growth[10]["error"] = float("inf")
    growth[11]["error"] = float("nan")
    card, drawn = panel(read_page(html(diagnosis_document(sick, None))), "error-growth")
    assert drawn["traces"][1]["y"][9:12] == [pytest.approx(1e-4 * 1.05**9), None, None]
    assert "values that are not finite" in card.text


def test_the_headroom_stands_before_the_maps(page):
    section = page.one("section", id="numerics")
    assert section.one("ul").all("li")[0].text.startswith("float16 works with scales from")
    assert [one.attributes["data-key"] for one in section.all("figure")] == [
        *("activation", "activation_gradient", "gradient", "weight", "update")
    ]


def test_a_diagnosis_without_findings_says_so():
    text = html(diagnosis_document(empty(seconds=3.0), None))
    assert len(text) < 60_000, "without figures the script that draws them is not there"
    page = read_page(text)
    assert page.one("p", class_="headline").text == "Nothing found, 3.0 s."
    assert figures(page) == []
    assert "Nothing found, 3.0 s." in printed(empty(seconds=3.0))


def test_secrets_are_in_no_format():
    key = "a" * 8 + "0123456789abcdef" * 2
    change = Change(overrides=[f"tracking.api_key={key}"])
    sick = hidden(empty(findings=[ShownEps(change=change)]))
    assert key not in html(diagnosis_document(sick, None)) + printed(sick)


def test_the_markdown_tells_the_same():
    text = markdown(diagnosis_document(diagnosis(), None))
    assert text.startswith("# Diagnosis: amp_fp16, gpt_tiny on synthetic_tokens, AMD EPYC 9B45\n")
    headings = re.findall(r"^### (\d+)\. ", text, flags=re.MULTILINE)
    assert headings == [str(number) for number in range(1, 9)]
    assert "```\nhidden = hidden.to(self.head.weight.dtype)\n```" in text
    assert "<script>" not in text.replace("\\<script\\>", "").partition("```")[0]
    fenced = empty(findings=[ShownEps(change=Change(code="a = '```'"))])
    assert "````\na = '```'\n````" in markdown(diagnosis_document(fenced, None))


@pytest.mark.parametrize("width", [50, 80, 120])
def test_all_but_code_fits_into_the_terminal(width):
    lines = printed(diagnosis(), width).splitlines()
    assert [line for line in lines if len(line) > width and LONG_MODULE not in line and "=" not in line] == []


def test_the_terminal_sums_up_and_cannot_be_steered():
    sick = diagnosis()
    sick.findings[0].modules[0] = "\x1b[2Jhead"
    text = " ".join(printed(sick).split())
    assert "8 findings, memory not examined, 50 steps replayed at most, 41 s." in text
    assert "\x1b" not in text
    assert "\\x1b[2Jhead" in text


def test_the_json_has_facts_and_sentences():
    content = diagnosis_document(diagnosis(), None).data
    mismatch = json.loads(json.dumps(content))["findings"][0]
    assert mismatch["kind"] == "shown_mismatch"
    assert mismatch["modules"] == ["decoder.head"]
    assert mismatch["change"] == {"overrides": [], "code": "hidden = hidden.to(self.head.weight.dtype)"}
    assert mismatch["headline"].startswith("aten.addmm gets")
    assert mismatch["sentences"]["evidence"][1] == "its input is float32"
    assert [one["kind"] for one in content["findings"]] == [one.kind() for one in in_order(diagnosis().findings)]
