"""A kind of report that no renderer has heard of, and a format that no command has: one file each."""

import csv
import json
from io import StringIO

import pytest
from page_reader import read_page

from ampsweep.commands.main import main
from ampsweep.report.console import show
from ampsweep.report.data_formats import FORMATS, as_csv, as_json, formats, put_out
from ampsweep.report.document import Code, Document, Item, Items, Prose, Section
from ampsweep.report.figure import Figure
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.palette import arm_styles
from ampsweep.report.tables import Cell, Column, Row, Table, text_table
from ampsweep.report.terminal import Terminal
from ampsweep.report.wandb.send_comparison import wandb_page

ARMS = ("fp32", "amp_bf16", "amp_fp16+cache_enabled=false", "master_bf16+mixed_precision=autocast")


@pytest.fixture
def tides() -> Document:
    """The tides of two harbours by precision."""

    def table(height: float) -> Table:
        rows = [
            Row(
                (Cell(arm), Cell(f"{height:.1f} m", height, height - 0.5, height + 0.5, "[-0.5, +0.5]; high"), Cell()),
                arm=arm,
            )
            for arm in ARMS
        ]
        columns = (
            Column("arm"),
            Column("height above the harbour's datum", "height_m", numeric=True),
            Column("wind", optional=True),
        )
        return Table(key="tides", columns=columns, rows=tuple(rows))

    harbours = [
        Section(
            title=f"harbour {name}",
            kind="card",
            blocks=(
                Prose("Sail in amp_bf16.", "headline", arm="amp_bf16"),
                table(height),
                Items((Item("It <rises> & falls_.", "tide", "fp32"),), "Why"),
                Section(title="Details", blocks=(Prose("Folded away."),), folded=True),
            ),
        )
        for name, height in (("Brest", 3.25), ("Cuxhaven", 1.5))
    ]
    figure = Figure(key="moon", title="Moon", table=text_table("moon", ["phase", "share"], [["new", "50%"]]))
    return Document(
        title="Tides",
        subtitle="2 harbours",
        sections=(
            Section(title="Harbours", key="harbours", blocks=tuple(harbours)),
            Section(title="Panels", key="panels", blocks=(figure,), on_screen=False),
            Section(title="To copy", blocks=(Code("tide=`high`"),)),
        ),
        arms=arm_styles(ARMS),
        data={"height_m": 3.25},
    )


def shown(document: Document, width: int, *, is_terminal: bool = True) -> str:
    out = StringIO()
    show(document, Terminal(file=out, width=width, force_terminal=is_terminal, no_color=True, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_cuts_neither_headers_nor_cells(tides, width):
    text = shown(tides, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for word in (
        "height",
        "harbour's",
        "datum",
        "3.2 m",
        "[-0.5,",
        *["Brest", "Cuxhaven", "fp32", "amp_bf16", "tide=`high`"],
    ):
        assert word in text


def test_a_terminal_has_the_answer_last_and_nothing_folded(tides):
    lines = shown(tides, 120).splitlines()
    first = lines.index("harbour Brest")
    assert lines[lines.index("", first) - 1].strip() == "Sail in amp_bf16."
    assert "Folded away" not in "".join(lines)
    assert "Moon" not in "".join(lines)


def test_a_log_file_has_no_edge(tides):
    assert "It <rises> & falls_." in shown(tides, 20, is_terminal=False)


def test_markdown_shows_text_as_it_is(tides):
    text = markdown(tides)
    assert "### harbour Brest" in text
    assert "**Sail in amp_bf16.**" in text
    assert "- **tide** fp32: It \\<rises\\> \\& falls\\_." in text
    assert "| fp32 | 3.2 m [-0.5, +0.5]; high |" in text
    assert "## Panels\n\n### Moon\n\n| phase | share |" in text
    assert "```\ntide=`high`\n```" in text


def test_csv_has_every_digit_and_the_interval(tides):
    first, second = as_csv(tides).strip().split("\n\n")
    assert first.startswith("# tides\n")
    rows = list(csv.DictReader(StringIO(first.partition("\n")[2])))
    assert len(rows) == 2 * len(ARMS)
    assert rows[0] == {
        "section": "harbour Brest",
        "arm": "fp32",
        "height_m": "3.25",
        "height_m_low": "2.75",
        "height_m_high": "3.75",
        "wind": "",
    }
    assert second == "# moon\nphase,share\nnew,50%"


def test_json_is_the_data_itself(tides):
    assert json.loads(as_json(tides)) == {"height_m": 3.25}


def test_a_page_has_all_of_it_and_a_button_for_each_arm(tides):
    page = read_page(html(tides))
    assert [one.text for one in page.one("nav").all("a")] == ["Harbours", "Panels"]
    cards = page.all("article")
    assert [card.one("h3").text for card in cards] == ["harbour Brest", "harbour Cuxhaven"]
    assert cards[0].one(class_="headline").text == "Sail in amp_bf16."
    assert cards[0].one("details").one("summary").text == "Details"
    assert [one.attributes["data-arm"] for one in page.one("form").all("button", class_="arm")] == list(ARMS)
    assert cards[0].one("table").rows()[0]["arm"] == "fp32"


def test_a_new_format_is_one_function(monkeypatch, capsys, write, gpu_runs, tmp_path):
    write(gpu_runs)
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
