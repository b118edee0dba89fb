"""A new kind of report has every format, and a new format is a function."""

import csv
import json
from io import StringIO

import pytest
from page_reader import read_page
from shown_runs import gpu_runs, printed

from ampsweep.commands.main import main
from ampsweep.report.data_formats import FORMATS, as_csv, as_json, formats, put_out
from ampsweep.report.document import Code, Document, Item, Items, Prose, Section
from ampsweep.report.figure import Figure
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.palette import arm_styles
from ampsweep.report.tables import Cell, Column, Row, Table, text_table
from ampsweep.report.wandb.send_comparison import wandb_page

ARMS = ("fp32", "amp_bf16", "amp_fp16+cache_enabled=false", "master_bf16+mixed_precision=autocast")


@pytest.fixture
def tides():
    """The tides of two harbours by precision."""

    def harbour(name, height):
        value = Cell(f"{height:.1f} m", height, height - 0.5, height + 0.5, "[-0.5, +0.5]; high")
        columns = (
            *(Column("arm"), Column("height above the harbour's datum", "height_m", numeric=True)),
            Column("wind", optional=True),
        )
        table = Table(
            key="tides", columns=columns, rows=tuple(Row((Cell(arm), value, Cell()), arm=arm) for arm in ARMS)
        )
        answer = Prose("Sail in amp_bf16.", "headline", arm="amp_bf16")
        why = Items((Item("It <rises> & falls_ | *ebbs* `at` [sea](x).", "tide", "fp32"),), "Why")
        details = Section(title="Details", blocks=(Prose("Folded away."),), folded=True)
        return Section(title=f"harbour {name}", kind="card", blocks=(answer, table, why, details))

    figure = Figure(key="moon", title="Moon", table=text_table("moon", ["phase", "share"], [["new", "50%"]]))
    return Document(
        title="Tides",
        subtitle="2 harbours",
        sections=(
            Section(title="Harbours", key="harbours", blocks=(harbour("Brest", 3.25), harbour("Cuxhaven", 1.5))),
            Section(title="Panels", key="panels", blocks=(figure,), on_screen=False),
            Section(title="To copy", blocks=(Code("tide=`high`"),)),
        ),
        arms=arm_styles(ARMS),
        data={"height_m": 3.25},
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_cuts_nothing_and_has_the_answer_last(tides, width):
    text = printed(tides, width, is_terminal=True)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for word in ("height", "harbour's", "datum", "3.2 m", "[-0.5,", "Brest", "Cuxhaven", "amp_bf16", "tide=`high`"):
        assert word in text
    lines = text.splitlines()
    first = lines.index("harbour Brest")
    assert lines[lines.index("", first) - 1].strip() == "Sail in amp_bf16."
    assert "Folded away" not in text
    assert "Moon" not in text
    assert "It <rises> & falls_ | *ebbs* `at` [sea](x)." in printed(tides, 20, is_terminal=False), (
        "a log file has no edge"
    )


def test_markdown_shows_text_as_it_is(tides):
    text = markdown(tides)
    for part in (
        *(
            "### harbour Brest",
            "**Sail in amp_bf16.**",
            "- **tide** fp32: It \\<rises\\> \\& falls\\_ \\| \\*ebbs\\* \\`at\\` [sea\\](x).",
        ),
        *("| fp32 | 3.2 m [-0.5, +0.5]; high |", "```\ntide=`high`\n```", "#### Details\n\nFolded away."),
        "## Panels\n\n### Moon\n\n| phase | share |",
    ):
        assert part in text


def test_data_have_every_digit_and_the_interval(tides):
    first, second = as_csv(tides).strip().split("\n\n")
    assert first.startswith("# tides\n")
    rows = list(csv.DictReader(StringIO(first.partition("\n")[2])))
    assert len(rows) == 2 * len(ARMS)
    figures = {"height_m": "3.25", "height_m_low": "2.75", "height_m_high": "3.75"}
    assert rows[0] == {"section": "harbour Brest", "arm": "fp32", **figures, "wind": ""}
    assert second == "# moon\nphase,share\nnew,50%"
    assert json.loads(as_json(tides)) == {"height_m": 3.25}


def test_a_page_has_all_of_it_and_a_button_for_each_arm(tides):
    page = read_page(html(tides))
    assert [link.text for link in page.one("nav").all("a")] == ["Harbours", "Panels"]
    brest, cuxhaven = page.all("article")
    assert [card.one("h3").text for card in (brest, cuxhaven)] == ["harbour Brest", "harbour Cuxhaven"]
    assert brest.one(class_="headline").text == "Sail in amp_bf16."
    assert brest.one("details").one("summary").text == "Details"
    assert [button.attributes["data-arm"] for button in page.one("form").all("button", class_="arm")] == list(ARMS)
    assert brest.one("table").rows()[0] == {
        "arm": "fp32",
        "height above the harbour's datum": "3.2 m [-0.5, +0.5] high",
    }


def test_a_new_format_is_one_function(monkeypatch, capsys, write, tmp_path):
    write(gpu_runs())
    monkeypatch.setitem(FORMATS, "headlines", lambda document: f"{document.title.upper()}\n")
    assert main(["report", str(tmp_path), "--format", "headlines"]) == 0
    assert capsys.readouterr().out == "PRECISION COMPARED WITH FP32\n"
    assert main(["report", str(tmp_path), "--format", "knots"]) == 2
    assert "headlines" in capsys.readouterr().err


def test_a_new_kind_of_report_has_every_format_and_goes_to_wandb(tides, capsys, tmp_path):
    for name in formats():
        put_out(tides, name)
        assert "3.2" in capsys.readouterr().out
    page = wandb_page(tides, id="tides", name="tides", config={}, tags=(), html=tmp_path / "tides.html")
    assert tuple(page.tables["tides"][0].values())[:3] == ("harbour Brest", "fp32", 3.25)
    assert list(page.figures) == ["panels/moon"]
