"""What the user of a terminal sees while runs go on, and what stays there afterwards."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import MLP, only_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is a POSIX matter"),
]

GATED = (
    "model=custom",
    "model._target_=own_models.Gated",
    "+model.at=6",
    "data=digits",
    "trainer.steps=10",
    "trainer.log_every=1",
    "tracking=disabled",
)
"""A training that stands still in its sixth step until the file `gate.open` exists."""


@pytest.fixture
def terminal(repository: Path, tmp_path: Path) -> Iterator[Callable]:
    """`python train.py ARGUMENTS` in a terminal so many columns wide."""
    from terminal import Terminal

    opened = []

    def start(*arguments: str, width: int, **environment: str) -> Terminal:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-W", "error", str(repository / "train.py"), *arguments]
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        variables = {**inherited, "TERM": "xterm-256color", "PYTHONPATH": path, **environment}
        opened.append(Terminal(command, variables, width=width))
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
        one.close()


def gate(directory: Path) -> str:
    return f"+model.gate={directory / 'gate.open'}"


def on(lines: list[str], pattern: str) -> list[str]:
    return [line for line in lines if re.search(pattern, line)]


def test_a_sweep_shows_its_run_then_lines_and_the_comparison(terminal, tmp_path):
    shown = terminal("-m", "seed=0,1", "precision=amp_fp16,fp32", *GATED, gate(tmp_path), width=100)
    lines = shown.wait_for(lambda lines: on(lines, r"step +[1-5]/10") and on(lines, "so far"), "the run is under way")
    (running,) = on(lines, "step")
    assert re.match(r"1/4  amp_fp16  seed 0  step  \d/10  loss \d\.\d+  scale 65536", running)
    assert on(lines, "0 of 4 runs done")

    (tmp_path / "gate.open").touch()
    assert shown.finish() == 0
    lines = shown.screen.lines
    ended = on(lines, r"^ ?\d/4  ")
    assert [line.split()[:5] for line in ended] == [
        [f"{number}/4", arm, "seed", str(seed), "completed"]
        for number, (seed, arm) in enumerate(((s, a) for s in (0, 1) for a in ("amp_fp16", "fp32")), start=1)
    ]
    assert all(re.search(r"[\d.]+ ms a step +peak [\d.]+ KiB  val loss \d\.\d{4}", line) for line in ended)
    assert not on(lines, "runs done"), "what went on is gone"
    assert lines.index(ended[-1]) < lines.index(on(lines, "^Precision compared with fp32")[0])


def test_ctrl_c_leaves_a_narrow_colourless_terminal_in_order(terminal, tmp_path):
    shown = terminal(
        "-m", "precision=fp32,amp_bf16", *GATED, gate(tmp_path), width=44, NO_COLOR="1", COLORTERM="truecolor"
    )
    shown.wait_for(lambda lines: on(lines, r" [1-5]/10"), "the run is under way")
    shown.press("\x03")
    (tmp_path / "gate.open").touch()
    assert shown.finish() == 1
    assert on(shown.screen.lines, r"1/2  fp32 .*interrupted")
    assert not on(shown.screen.lines, "runs done")
    colours = {parameter for style in shown.screen.styles for parameter in style.split(";")} - {"0", "1", "2"}
    assert colours == set(), "bold and faint are no colours"
    assert shown.raw.count("\x1b[?25h") == shown.raw.count("\x1b[?25l"), "the cursor is back"
    assert only_run().record.status == "interrupted"


def test_a_dumb_terminal_gets_lines_and_nothing_else(terminal):
    shown = terminal("-m", *MLP, "trainer.steps=4", "precision=fp32,tf32", "device=cpu", width=60, TERM="dumb")
    assert shown.finish() == 0
    assert "\x1b" not in shown.raw
    assert shown.raw.count("runs done") == 0
    ended = re.findall(r"\d/2  .*", shown.raw)
    assert [line.split()[5] for line in ended] == ["completed", "unsupported"]
    assert "compute capability 8.0 or later" in ended[1], "lines are whole, the terminal breaks them"


def test_a_single_training_shows_progress_and_leaves_a_summary(terminal, tmp_path):
    shown = terminal(*GATED, "precision=amp_fp16", gate(tmp_path), width=80)
    (running,) = shown.wait_for(lambda lines: on(lines, r"step +[1-5]/10"), "it is under way")[-1:]
    assert running.startswith("amp_fp16  Gated seed 0  step")
    (tmp_path / "gate.open").touch()
    assert shown.finish() == 0
    assert not on(shown.screen.lines, "/10")
    assert on(shown.screen.lines, "^amp_fp16, Gated, seed 0")
