import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from synthetic_records import contaminated, disproved, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.report.console import print_comparison
from ampsweep.report.palette import MODE_COLOURS, arm_colour
from ampsweep.report.sentences.recommending import conclusion, recommendation

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def printed(comparison, **console) -> str:
    stream = io.StringIO()
    print_comparison(comparison, Console(file=stream, **console))
    return stream.getvalue()


def table_rows(text):
    """Arm -> everything in its row, first lines and details, in one string."""
    lines = text.split("─\n", 1)[1].splitlines()
    rows, arm = {}, None
    for line in lines:
        if line.startswith(("Against", "No conclusion", "tf32: ", "amp_fp16: ")):
            break
        arm = line.split()[0] if line[:1].strip() else arm
        rows[arm] = rows.get(arm, "") + " " + line
    return rows


def test_the_table_shows_every_figure_with_its_unit_and_interval(comparison):
    rows = table_rows(printed(comparison))
    for shown in ("6.13 ms", "launching", "14 us/op", "100 MiB", "2.4133", "sd 0.0153", "completed"):
        assert shown in rows["fp32"]
    for shown in ("4.05 ms", "1.51x", "[1.4", "70.0 MiB", "30.0 MiB", "30.0%", "2.4157", "+0.0023", "completed", " 3"):
        assert shown in rows["amp_bf16"]
    for shown in ("0.0860x", "-10.0 MiB", "-10.0%", "4 cut short"):
        assert shown.removeprefix("4 ") in rows["amp_fp16"]


def test_what_was_not_measured_is_a_dash(comparison):
    rows = table_rows(printed(comparison))
    assert rows["tf32"].split() == ["tf32", *"--------", "unsupported", "0"]


def test_the_conclusion_follows_the_table_and_its_notes(comparison):
    text = " ".join(printed(comparison).split())
    (workload,) = comparison.workloads
    assert text.endswith(f"{conclusion(workload)} {recommendation(workload.verdict)}")
    assert "tf32: unsupported: tf32 needs a CUDA device; this is a CPU (seeds 0, 1, 2)" in text
    assert "trainer.max_seconds=20 passed after 17 of 40 steps" in text


def test_a_pipe_gets_no_colours_and_nothing_is_cut(comparison):
    text = printed(comparison, width=40)
    assert not ANSI.search(text)
    assert "…" not in text
    assert re.search(r"\[\S+, \S+\]", text), "an interval stands on one line"
    assert max(map(len, text.splitlines())) <= 125


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_terminal_holds_the_table_whole_with_one_colour_a_mode(comparison, width):
    text = printed(comparison, width=width, force_terminal=True, color_system="truecolor")
    plain = ANSI.sub("", text)
    assert max(map(len, plain.splitlines())) <= width
    assert "…" not in plain
    assert all(figure in plain for figure in ("4.05 ms", "1.51x", "30.0 MiB", "+0.0023", "unsupported"))
    red, green, blue = (int(MODE_COLOURS["amp_bf16"][i : i + 2], 16) for i in (1, 3, 5))
    assert re.search(rf"38;2;{red};{green};{blue}m *amp_bf16", text)
    assert re.search(r"\[-\S+, \+\S+\]", plain), "an interval stands on one line"


def test_every_mode_has_a_colour_and_a_changed_one_keeps_it():
    assert arm_colour("amp_bf16+cache_enabled=false") == MODE_COLOURS["amp_bf16"]
    assert arm_colour("mine") is None
    assert len(set(MODE_COLOURS.values())) == len(MODE_COLOURS)


def test_every_workload_has_its_table_and_conclusion():
    entries = [
        entry
        for model in ("mlp_small", "gpt_tiny")
        for arm in ("fp32", "amp_bf16")
        for entry in sweep(arm, [1.0] * 3, facts={"model": model})
    ]
    text = printed(compare(entries, baseline="fp32", margin_pct=1.0))
    assert text.index("model gpt_tiny") < text.index("model mlp_small"), "in the order of all documents"
    assert text.count("Against fp32, amp_bf16") == 2


def test_accuracy_has_a_column_only_where_there_is_one():
    def header(accuracy):
        entries = [run("fp32", accuracy=accuracy), run("amp_bf16", accuracy=accuracy)]
        return printed(compare(entries, baseline="fp32", margin_pct=1.0)).split("─")[0]

    assert "accuracy" in header(0.97)
    assert "accuracy" not in header(None)


def test_names_that_look_like_markup_stay_text(comparison):
    (workload,) = comparison.workloads
    named = replace(workload.arms[2], arm="[red]x[/red]")
    odd = replace(comparison, workloads=(replace(workload, title="[bold]t[/]", arms=(workload.arms[0], named)),))
    text = printed(odd)
    assert "[red]x[/red]" in text
    assert "[bold]t[/]" in text


def test_printing_leaves_the_console_as_it_was(comparison):
    console = Console(file=io.StringIO(), width=70)
    print_comparison(comparison, console)
    assert console.width == 70


def test_runs_that_do_not_count_are_said_with_their_reason():
    entries = [
        *sweep("fp32", [10.0] * 3),
        *sweep("amp_bf16", [5.0] * 2),
        contaminated("amp_bf16", 2),
        disproved("tf32", 0),
    ]
    text = " ".join(printed(compare(entries, baseline="fp32", margin_pct=1.0)).split())
    assert (
        "amp_bf16: contaminated, hence no speed to compare: other processes kept 1.0 of 2 cores busy (seed 2)" in text
    )
    assert "tf32: disproved, hence compared with nothing: a matmul in float32 lost bits (seed 0)" in text
    assert "without 1 contaminated amp_bf16 run" in text


def test_no_runs_are_said_to_be_none():
    assert printed(compare([], baseline="fp32", margin_pct=1.0)) == "No runs to compare.\n"
