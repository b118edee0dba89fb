"""A new kind of report has every format, a new format is a function, and a page is safe whatever names it holds."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest
from page_reader import figures, panel, read_page
from shown_runs import document_of, gpu_runs, printed
from synthetic_records import failed, run

from ampsweep.commands.main import main
from ampsweep.metrics import METRICS
from ampsweep.report.comparison_document import OF_SERIES, OF_WORKLOAD
from ampsweep.report.data_formats import FORMATS, as_csv, as_json, formats, put_out
from ampsweep.report.document import Code, Document, Item, Items, Prose, Section
from ampsweep.report.figure import Figure
from ampsweep.report.html import Markup, html, join, json_in_script, name, tag
from ampsweep.report.markdown import markdown
from ampsweep.report.palette import arm_styles
from ampsweep.report.panels import PANELS, SECTIONS, Panel
from ampsweep.report.tables import Cell, Column, Row, Table, text_table
from ampsweep.report.wandb.send_comparison import page_of

ARMS = ("fp32", "amp_bf16", "amp_fp16+cache_enabled=false", "master_bf16+mixed_precision=autocast")


def harbour(name, height):
    value = Cell(f"{height:.1f} m", height, height - 0.5, height + 0.5, "[-0.5, +0.5]; high")
    tide = Column("height above the harbour's datum", "height_m", numeric=True)
    rows = tuple(Row((Cell(arm), value, Cell()), arm=arm) for arm in ARMS)
    table = Table(key="tides", columns=(Column("arm"), tide, Column("wind", optional=True)), rows=rows)
    answer = Prose("Sail in amp_bf16.", "headline", arm="amp_bf16")
    why = Items((Item("It <rises> & falls_ | *ebbs* `at` [sea](x).", "tide", "fp32"),), "Why")
    details = Section(title="Details", blocks=(Prose("Folded away."),), folded=True)
    return Section(title=f"harbour {name}", kind="card", blocks=(answer, table, why, details))


@pytest.fixture
def tides():
    """The tides of two harbours by precision."""
    figure = Figure(key="moon", title="Moon", table=text_table("moon", ["phase", "share"], [["new", "50%"]]))
    sections = (
        Section(title="Harbours", key="harbours", blocks=(harbour("Brest", 3.25), harbour("Cuxhaven", 1.5))),
        Section(title="Panels", key="panels", blocks=(figure,), on_screen=False),
        Section(title="To copy", blocks=(Code("tide=`high`"),)),
    )
    of = {"arms": arm_styles(ARMS), "data": {"height_m": 3.25}}
    return Document(title="Tides", subtitle="2 harbours", sections=sections, **of)


def test_every_format_as_text(tides, golden):
    log = printed(tides, 20, is_terminal=False)
    golden("tides.txt", f"\n{'=' * 60}\n".join([log, markdown(tides), as_csv(tides), as_json(tides)]))


def test_a_terminal_cuts_nothing_and_has_the_answer_first(tides):
    for width in (40, 80, 120):
        lines = printed(tides, width, is_terminal=True).splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)
        assert lines[lines.index("harbour Brest") + 1].strip() == "Sail in amp_bf16."


def test_a_page_has_all_of_it_and_a_button_for_each_arm(tides):
    page = read_page(html(tides))
    assert [link.text for link in page.one("nav").all("a")] == ["Harbours", "Panels"]
    brest, cuxhaven = page.all("article")
    assert [card.one("h3").text for card in (brest, cuxhaven)] == ["harbour Brest", "harbour Cuxhaven"]
    assert brest.one(class_="headline").text == "Sail in amp_bf16."
    assert brest.one("details").one("summary").text == "Details"
    assert [button.attributes["data-arm"] for button in page.one("form").all("button", class_="arm")] == list(ARMS)
    row, *_ = brest.one("table").rows()
    assert row == {"arm": "fp32", "height above the harbour's datum": "3.2 m [-0.5, +0.5] high"}


def test_a_new_format_is_one_function(monkeypatch, capsys, write, tmp_path):
    write(gpu_runs())
    monkeypatch.setitem(FORMATS, "headlines", lambda document: f"{document.title.upper()}\n")
    assert main(["report", str(tmp_path), "--format", "headlines"]) == 0
    assert capsys.readouterr().out == "PRECISION COMPARED WITH FP32\n"


def test_a_new_kind_of_report_has_every_format_and_goes_to_wandb(tides, capsys, tmp_path):
    for form in formats():
        put_out(tides, form)
        assert "3.2" in capsys.readouterr().out
    compared = replace(tides, data={"baseline": "fp32", "margin_pct": 1.0})
    page = page_of(compared, [run("fp32")], "tides", tmp_path / "tides.html")
    assert tuple(page.tables["tides"][0].values())[:3] == ("harbour Brest", "fp32", 3.25)
    assert list(page.figures) == ["panels/moon"]


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = tag("p", "1 < 2 & 3", tag("b", '"x"'), title='a "q" <title>', data_arm="amp")
    assert made == '<p title="a &quot;q&quot; &lt;title&gt;" data-arm="amp">1 &lt; 2 &amp; 3<b>&quot;x&quot;</b></p>'
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
        drawn = [trace.get(key) for trace in figure["traces"] for key in ("name", "x", "y", "text")]
        assert not re.search("<script|<img", json.dumps([figure["layout"], drawn]))


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
    common = {"title": "Mine & only mine", "question": "Is it shown?", "section": "Device"}
    kinds = dict.fromkeys(("by_arm", "stack", "against"), "device/power_w") | {"curves": "train/grad_norm"}
    added = [Panel(key=f"my-{kind}", kind=kind, metrics=(key,), **common) for kind, key in kinds.items()]
    document = document_of(write(gpu_runs()), tmp_path, added)
    page = read_page(html(document))
    for kind in kinds:
        element, figure = panel(page, f"my-{kind}")
        assert element.one("figcaption").text == "Mine & only mine Is it shown?"
        assert figure["traces"]
    assert panel(page, "my-against")[1]["traces"][0]["y"] == [400.0, 400.0]
    assert "Mine \\& only mine" in markdown(document)
