"""A page is safe whatever names it holds, works by keyboard, and shows every entry of the table of panels."""

import base64
import hashlib
import json
import re

import pytest
from page_reader import figures, panel, read_page
from shown_runs import document_of, gpu_runs
from synthetic_records import failed, run

from ampsweep.metrics import METRICS
from ampsweep.report.dashboard import OF_SERIES, OF_WORKLOAD
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.markup import Markup, join, json_in_script, name, tag
from ampsweep.report.panels import PANELS, SECTIONS, Panel


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = tag("p", "1 < 2 & 3", tag("b", '"x"'), title='a "quoted" <title>', data_arm="amp")
    assert made == (
        '<p title="a &quot;quoted&quot; &lt;title&gt;" data-arm="amp">1 &lt; 2 &amp; 3<b>&quot;x&quot;</b></p>'
    )
    assert join("a<b", Markup("<br>"), None) == "a&lt;b<br>"
    assert tag("details", open=True, hidden=False, class_=None) == "<details open></details>"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert name("שלום <b>") == "<bdi>שלום &lt;b&gt;</bdi>"
    for text in ("</script><script>alert(1)</script>", "<!--", "\u2028", "&lt;"):
        content = json_in_script({"text": text})
        assert json.loads(content) == {"text": text}
        assert not set("<>&\u2028") & set(content)


@pytest.mark.parametrize("hostile", ['<script>alert(1)</script>"><img src=x onerror=alert(1)>', "a&amp;b", "עברית"])
def test_names_with_markup_stay_text(write, tmp_path, hostile):
    entries = [
        run(arm, 0, facts={"model": hostile}, directory=f"run{index}", wandb={"url": f"javascript:{hostile}"})
        for index, arm in enumerate(("fp32", hostile))
    ]
    entries.append(failed("amp_fp16", 0, "failed", hostile, facts={"model": hostile}))
    page = read_page(html(document_of(write(entries), tmp_path)))
    assert page.one("section", id="verdict").one("article").one("h3").text.startswith(f"model {hostile}")
    assert len(page.all("script")) == 4
    assert not page.all("img")
    assert all(not link.attributes["href"].startswith("javascript:") for link in page.all("a"))
    assert hostile in [row["why"] for row in page.one(class_="of-problems").one("table").rows()]
    for figure in figures(page):
        drawn = json.dumps([[trace.get(key) for key in ("name", "x", "y", "text")] for trace in figure["traces"]])
        assert not {"<script", "<img"} & {word for word in ("<script", "<img") if word in drawn}
        assert "<script" not in json.dumps(figure["layout"])


def test_nothing_is_fetched_and_only_its_own_scripts_may_run(gpu_document, gpu_page):
    for element in gpu_page.all():
        assert "src" not in element.attributes
        assert element.name != "link"
        assert element.name == "a" or "href" not in element.attributes
    policy = gpu_page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", html(gpu_document), flags=re.DOTALL)
    assert len(scripts) == 3
    for script in scripts:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy


def test_the_page_can_be_used_by_keyboard_and_without_scripts(gpu_page):
    assert gpu_page.all("a", class_="skip")[0].attributes["href"] == "#verdict"
    targets = {element.attributes.get("id") for element in gpu_page.all()}
    for link in gpu_page.one("nav").all("a"):
        assert link.attributes["href"].removeprefix("#") in targets
    assert all(element.all("table") for element in gpu_page.all("figure")), "each figure has its table"
    for scrolling in gpu_page.all(class_="scroll"):
        assert scrolling.attributes["tabindex"] == "0"
        assert scrolling.attributes["aria-label"]
    assert gpu_page.one("html").attributes["lang"] == "en"
    assert [button.text for button in gpu_page.all("button", class_="arm")] == ["fp32", "amp_bf16", "amp_fp16"]
    assert not read_page(html(document_of([run("fp32")]))).all("form"), "a single arm has no button"


def test_panels_have_questions_and_known_metrics():
    assert len({panel.key for panel in PANELS}) == len(PANELS)
    for each in PANELS:
        assert (each.key, each.question[-1]) == (each.key.lower(), "?")
        assert each.section in SECTIONS
        assert set(each.metrics) <= set(METRICS)
        assert len({METRICS[key].unit for key in each.metrics}) == 1 or each.kind == "front"
        assert (each.kind in OF_WORKLOAD) != (each.kind in OF_SERIES)


def test_a_panel_is_added_by_an_entry(write, tmp_path):
    common = {"title": "Mine & only mine", "question": "Is it shown?", "section": "device"}
    metrics = {"by_arm": "device/power_w", "stack": "device/power_w", "against": "device/power_w"}
    kinds = metrics | {"curves": "train/grad_norm"}
    added = [Panel(key=f"my-{kind}", kind=kind, metrics=(key,), **common) for kind, key in kinds.items()]
    document = document_of(write(gpu_runs()), tmp_path, added)
    page = read_page(html(document))
    for kind in kinds:
        element, figure = panel(page, f"my-{kind}")
        assert element.one("figcaption").text == "Mine & only mine Is it shown?"
        assert figure["traces"]
    assert panel(page, "my-against")[1]["traces"][0]["y"] == [400.0, 400.0]
    assert "Mine \\& only mine" in markdown(document)
