"""Names and paths are text on the terminal: none is a style, an error or a command to it."""

import io

import pytest
from command_line import MLP
from rich.table import Table
from rich.text import Text

from ampsweep.report.terminal import Terminal


def printed(renderable, **settings):
    stream = io.StringIO()
    Terminal(file=stream, width=60, **settings).print(renderable)
    return stream.getvalue().rstrip("\n")


@pytest.mark.parametrize("name", ["[red]x", "a[/b]", ":smile:", "plain", "naïve 模型", "a\tb"])
def test_a_name_is_printed_as_it_is(name):
    assert printed(name) == printed(Text(name)) == printed(name, force_terminal=True).replace("\x1b[0m", "")
    table = Table(box=None, show_header=False, padding=0)
    table.add_row(name)
    assert printed(table).rstrip().split() == name.split()


@pytest.mark.parametrize(
    "steering", ["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\u202e", "\u2067", "\u2028", "\x00"], ids=ascii
)
def test_what_would_steer_the_terminal_is_a_mark(steering):
    for line in (printed(f"a{steering}b"), printed(Text(f"a{steering}b"))):
        assert steering not in line
        assert line.startswith("a")
        assert line.endswith("b")


def test_colours_of_our_own_stay():
    line = printed(Text("fp32", style="bold red"), force_terminal=True, color_system="standard")
    assert line == "\x1b[1;31mfp32\x1b[0m"


def test_a_plan_with_names_like_markup_is_printed(train):
    ended = train("-m", *MLP, "model.name='m[/red]x'", "precision=fp32,tf32", "device=cpu", "dry_run=true")
    assert ended.code == 0
    assert "m[/red]x" in ended.out


def test_a_sweep_in_a_directory_named_like_markup_names_it(train):
    ended = train("-m", *MLP, "precision=tf32", "device=cpu", "output_dir='o[/b]'")
    assert ended.code == 0
    assert "o[/b]/" in ended.out
