import json
import re

import pytest
from page_reader import figures, panel, read_page
from shown_diagnoses import LONG_MODULE, diagnosis, install, numerics

from ampsweep.record.diagnosis import Change, Diagnosis, Finding
from ampsweep.report.diagnosis_markdown import diagnosis_markdown
from ampsweep.report.diagnosis_page import diagnosis_page, write_page


@pytest.fixture(autouse=True, scope="module")
def sentences():
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        yield


@pytest.fixture(scope="module")
def page(sentences):
    return read_page(diagnosis_page(diagnosis(), numerics(scale=4096.0)))


def empty(**more):
    return Diagnosis(arm="amp_bf16", model="mlp", data="digits", device="cpu", device_name="a CPU", **more)


def test_findings_stand_in_their_order_with_all_they_tell(page):
    found = page.all("article", class_="finding")
    assert [one.one("span", class_="finding-number").text for one in found] == [str(number) for number in range(1, 9)]
    mismatch, overflow, eps, *_ = found
    assert mismatch.one("h3").text.startswith("aten.addmm gets float32"), "an operator's name stays as it is"
    assert mismatch.one("p", class_="places").text == "module decoder.head operator aten.addmm at nets.py, line 41"
    assert mismatch.one("pre").text == "hidden = hidden.to(self.head.weight.dtype)"
    first, _ = overflow.all("li")
    assert first.text == "The largest score is 113,220 in step 3, float16 ends at 65,504."
    assert overflow.one("pre").text == f"'precision.fp32_modules=[{LONG_MODULE}]' precision.init_scale=1024"
    assert overflow.one("p", class_="proof").text.startswith("✓ tried The loss follows")
    assert eps.one("p", class_="proof").text == "✗ tried The loss is still not finite."


def test_a_price_says_what_it_is_a_share_of(page):
    badges = [one.all("span", class_="refused") for one in page.all("article", class_="finding")]
    assert [one[0].text if one else None for one in badges] == [
        *[None] * 4,
        "38.8% of the step's time",
        "21.0% of the step's time",
        "12.0% of the peak memory",
        "3.5% of the step's time",
    ]


def test_code_has_a_button_that_copies_it(page):
    for button in page.all("button", type="button"):
        if "data-copy" in button.attributes:
            assert page.one("code", id=button.attributes["data-copy"]).text
    assert len([one for one in page.all("button") if "data-copy" in one.attributes]) == 5


def test_names_with_markup_in_them_are_text(page):
    unknown = page.one("article", id="finding-4")
    assert unknown.one("h3").text == "<b>unknown</b> kind & more."
    assert unknown.one("code").text == "<script>alert(1)</script>"
    assert [one.text for one in unknown.all("li")] == [
        "largest_abs: 1500000000.0.",
        "dtype: float16.",
        "share_pct: 12.5.",
    ]


def test_markup_in_layers_is_text_in_figures_and_tables():
    sick = numerics(1)
    sick.magnitudes[0].layer = sick.magnitudes[4].layer = "<img src=x onerror=alert(1)>"
    text = diagnosis_page(empty(), sick)
    assert "<img" not in text.partition('id="figures"')[0].rpartition("<style>")[0]
    page = read_page(text)
    _, drawn = panel(page, "n-activation")
    assert drawn["layout"]["yaxis"]["ticktext"][0].startswith("&lt;img")


def test_it_fetches_nothing_and_runs_its_own_scripts_only():
    text = diagnosis_page(diagnosis(), numerics())
    page = read_page(text)
    (policy,) = [one for one in page.all("meta") if "http-equiv" in one.attributes]
    assert policy.attributes["content"].startswith("default-src 'none'; script-src 'sha256-")
    assert not [one for one in page.all("script") if "src" in one.attributes]
    assert not page.all("link")


def test_what_was_not_examined_is_told(page):
    assert (
        page.one("section", id="unexamined").one("li").text == "Memory was not examined: the time was over after 60 s."
    )


def test_facts_have_their_units(page):
    rows = {(row["complaint"], row["figure"]): row["value"] for row in page.one("section", id="facts").rows()}
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


def test_the_headroom_stands_before_the_maps(page):
    section = page.one("section", id="numerics")
    assert section.one("ul").all("li")[0].text.startswith("float16 works with scales from")
    assert [one.attributes["id"] for one in section.all("figure")] == [
        f"n-{kind}" for kind in ("activation", "activation_gradient", "gradient", "weight", "update")
    ]


def test_a_diagnosis_without_findings_says_so():
    text = diagnosis_page(empty(), None)
    assert len(text) < 60_000, "without figures the script that draws them is not there"
    page = read_page(text)
    assert page.one("p", class_="headline").text == "Nothing found."
    assert [one.attributes["id"] for one in page.all("section")] == ["findings"]
    assert figures(page) == []


def test_secrets_are_on_no_page(tmp_path):
    key = "a" * 8 + "0123456789abcdef" * 2
    sick = empty(findings=[Finding(complaint="loss", kind="x", change=Change(overrides=[f"tracking.api_key={key}"]))])
    write_page(sick, None, tmp_path / "diagnosis.html")
    assert key not in (tmp_path / "diagnosis.html").read_text(encoding="utf-8")


def test_the_markdown_tells_the_same():
    text = diagnosis_markdown(diagnosis())
    assert text.startswith("# Diagnosis: amp_fp16, gpt_tiny on synthetic_tokens, AMD EPYC 9B45\n")
    headings = re.findall(r"^## (\d+)\. ", text, flags=re.MULTILINE)
    assert headings == [str(number) for number in range(1, 9)]
    assert "```\nhidden = hidden.to(self.head.weight.dtype)\n```" in text
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "**Nothing found.**" in diagnosis_markdown(empty())


def test_code_with_backticks_stays_within_its_fence():
    sick = empty(findings=[Finding(complaint="loss", kind="x", change=Change(code="a = '```'"))])
    assert "````\na = '```'\n````" in diagnosis_markdown(sick)


def test_a_page_is_valid_json_where_values_are_not_finite():
    sick = diagnosis()
    growth = sick.facts["numerics/error_growth"]
    assert isinstance(growth, list)
    growth[10]["error"] = "inf"
    growth[11]["error"] = float("nan")
    page = read_page(diagnosis_page(sick, None))
    card, drawn = panel(page, "error-growth")
    assert drawn["traces"][1]["y"][9:12] == [pytest.approx(1e-4 * 1.05**9), None, None]
    assert "values that are not finite" in card.text
    json.dumps(drawn, allow_nan=False)
