import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from synthetic_records import contaminated, disproved, run, sweep

from ampsweep.analysis.comparison import ComparisonNote, compare
from ampsweep.report.columns import columns_for
from ampsweep.report.markdown import markdown
from ampsweep.report.sentences.recommending import conclusion, recommendation


@pytest.fixture
def document(comparison):
    return markdown(comparison.relative_to(Path("runs")))


def tables(document):
    """Tables as lists of rows of cells, as a Markdown reader finds them."""
    found, row = [], []
    for token in MarkdownIt("commonmark").enable("table").parse(document):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            row = []
            found[-1].append(row)
        elif token.type == "inline" and found and token.level >= 4:
            row.append("".join(child.content for child in token.children))
    return found


def test_the_table_has_the_columns_and_cells_of_the_console(comparison, document):
    (workload,) = comparison.workloads
    columns = columns_for(workload.arms)
    header, *rows = tables(document)[0]
    assert header == [column.header for column in columns]
    assert [row[0] for row in rows] == ["fp32", "tf32", "amp_bf16", "amp_fp16"]
    for arm, row in zip(workload.arms, rows, strict=True):
        cells = [column.render(arm) for column in columns]
        told = [f"{cell.value} {cell.detail}".strip() for cell in cells]
        assert [one.replace(",", "") for one in row] == [one.replace(",", "") for one in told]
    assert dict(zip(header, rows[0], strict=True))["limited by"] == "launching, 14 us/op"


def test_every_run_is_listed_with_status_and_place(document):
    header, *rows = tables(document)[1]
    assert header == ["arm", "seed", "status", "directory", "W&B"]
    assert len(rows) == 13
    assert ["tf32", "2", "unsupported", "tf32-gpt_tiny-8-s2", "-"] in rows
    assert rows[-1] == [
        "amp_fp16",
        "3",
        "completed",
        "amp_fp16-gpt_tiny-8-s3",
        "https://wandb.ai/team/ampsweep/runs/a1",
    ]


def test_conclusion_notes_and_runs_in_no_pair_are_there(comparison, document):
    (workload,) = comparison.workloads
    assert conclusion(workload) in document
    assert f"**{recommendation(workload.verdict)}**" in document
    assert "- amp_fp16: cut short, hence no loss to compare: trainer.max_seconds=20 passed" in document
    assert "- amp_fp16, seed 3 (amp_fp16-gpt_tiny-8-s3): there is no fp32 run with seed 3" in document
    assert "- tf32, seed 0 (tf32-gpt_tiny-8-s0): unsupported: tf32 needs a CUDA device" in document


def test_it_says_how_each_shown_figure_was_taken(comparison, document):
    method = document.split("## How each figure was taken")[1]
    for column in columns_for(comparison.workloads[0].arms):
        assert column.header == "arm" or f"- **{column.header}**: " in method
    assert "margin of 1%" in method
    assert "val accuracy" not in method


def test_runs_that_do_not_count_are_listed_with_what_that_means(document):
    entries = [*sweep("fp32", [10.0] * 2), contaminated("amp_bf16", 0), disproved("amp_fp16", 1)]
    text = markdown(compare(entries, baseline="fp32", margin_pct=1.0))
    note = "amp\\_bf16: contaminated, hence no speed to compare: other processes kept 1.0 of 2 cores busy (seed 0)"
    assert f"- {note}".replace("\\_", "_") in text
    assert "| amp_bf16 | 0 | completed, contaminated | runs/amp_bf16-gpt_tiny-8-s0 | - |" in text
    assert "- amp_fp16, seed 1 (runs/amp_fp16-gpt_tiny-8-s1): disproved: a matmul in float32 lost bits" in text
    assert (
        "**contaminated**: anything else may have changed the run's speed"
        in text.split("## How each figure was taken")[1]
    )
    assert "completed, contaminated" not in document


@pytest.mark.parametrize("name", ["a|b", "<script>alert(1)</script>", "*x*", "`x`", "_x_", "[x](y)", "a\nb", "&lt;"])
def test_names_that_look_like_markup_stay_text(name):
    document = markdown(compare([run(name, facts={"model": name})], baseline="fp32", margin_pct=1.0))
    assert tables(document)[0][1][0] == " ".join(name.split())
    rendered = MarkdownIt("commonmark").enable("table").render(document)
    assert "<script>" not in rendered
    assert not re.search(r"<em>|<code>|<a href", rendered)


def test_notes_on_the_whole_comparison_and_its_absence_of_runs():
    empty = compare([], baseline="fp32", margin_pct=1.0)
    assert "No runs to compare." in markdown(empty)
    noted = replace(empty, notes=(ComparisonNote(kind="predicted", num_runs=1),))
    assert "- 1 predicted run left out" in markdown(noted)
