"""What the user of a terminal sees while runs go on, and what stays there; names never steer the terminal."""

import io
import os
import re
import sys

import pytest
from command_line import MLP, only_run
from rich.table import Table
from rich.text import Text

from ampsweep.report import console as report_console

needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is a POSIX matter")


@pytest.fixture
def terminal(repository, tmp_path):
    """A sweep in a terminal: its trainings stand still in their sixth step until the file `gate.open` exists."""
    from terminal import Terminal

    opened = []

    def start(*arguments, width, **environment):
        gated = ("model=custom", "model._target_=own_models.Gated", "+model.at=6", f"+model.gate={tmp_path}/gate.open")
        short = ("data=digits", "trainer.steps=10", "trainer.log_every=1", "tracking=disabled", *MLP[-1:])
        command = [sys.executable, "-W", "error", repository / "train.py", "-m", *gated, *short, *arguments]
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        path = os.pathsep.join([str(repository / "tests"), os.environ.get("PYTHONPATH", "")])
        variables = {**inherited, "TERM": "xterm-256color", "PYTHONPATH": path, **environment}
        opened.append(Terminal(command, variables, width=width))
        return opened[-1]

    yield start
    for shown in opened:
        shown.close()


def on(lines, pattern):
    return [line for line in lines if re.search(pattern, line)]


@needs_pty
def test_a_sweep_shows_its_run_then_lines_and_the_comparison(terminal, tmp_path):
    shown = terminal("seed=0,1", "precision=amp_fp16", width=100)
    lines = shown.wait_for(lambda lines: on(lines, r"step +[1-5]/10") and on(lines, "so far"), "the run is under way")
    (running,) = on(lines, "step")
    assert re.match(r"1/2  amp_fp16  seed 0  step  \d/10  loss \d\.\d+  scale 65536", running)
    assert on(lines, "0 of 2 runs done")

    (tmp_path / "gate.open").touch()
    assert shown.finish() == 0
    lines = shown.lines
    ended = on(lines, r"^ ?\d/2  ")
    shown_first = [" ".join(line.split()[:5]) for line in ended]
    assert shown_first == ["1/2 amp_fp16 seed 0 completed", "2/2 amp_fp16 seed 1 completed"]
    assert all(re.search(r"[\d.]+ ms a step +peak [\d.]+ KiB  val loss \d\.\d{4}", line) for line in ended)
    assert not on(lines, "runs done"), "the live part is erased"
    assert lines.index(ended[-1]) < lines.index(on(lines, "compared with")[0])


@needs_pty
@pytest.mark.nightly
def test_ctrl_c_leaves_a_narrow_colourless_terminal_in_order(terminal, tmp_path):
    shown = terminal("precision=fp32,amp_bf16", width=44, NO_COLOR="1", COLORTERM="truecolor")
    shown.wait_for(lambda lines: on(lines, r" [1-5]/10"), "the run is under way")
    shown.press("\x03")
    (tmp_path / "gate.open").touch()
    assert shown.finish() == 1
    assert on(shown.lines, r"1/2  fp32 .*interrupted")
    assert not on(shown.lines, "runs done")
    colours = {number for style in re.findall(r"\x1b\[([0-9;]+)m", shown.raw) for number in style.split(";")}
    assert colours <= {"0", "1", "2"}, "bold and faint are no colours"
    assert shown.raw.count("\x1b[?25h") == shown.raw.count("\x1b[?25l"), "the cursor is back"
    assert only_run().record.status == "interrupted"


def printed(renderable, **settings):
    stream = io.StringIO()
    report_console.Terminal(file=stream, width=60, **settings).print(renderable)
    return stream.getvalue().rstrip("\n")


def test_a_name_is_printed_as_it_is():
    for name in ("[red]x", "a[/b]", ":smile:", "naïve 模型", "a\tb"):
        assert printed(name) == printed(Text(name)) == printed(name, force_terminal=True).replace("\x1b[0m", "")
        table = Table(box=None, show_header=False, padding=0)
        table.add_row(name)
        assert printed(table).rstrip().split() == name.split()
    for steering in ("\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\u202e", "\u2067", "\u2028", "\x00"):
        for line in (printed(f"a{steering}b"), printed(Text(f"a{steering}b"))):
            assert (line[0], line[-1], steering in line) == ("a", "b", False)
    line = printed(Text("fp32", style="bold red"), force_terminal=True, color_system="standard")
    assert line == "\x1b[1;31mfp32\x1b[0m", "the colours of the suite stay"
