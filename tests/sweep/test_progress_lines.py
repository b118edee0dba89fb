"""The lines about runs, how they fit into a terminal, and how long runs are expected to take."""

import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import contaminated, failed, run

from ampsweep.config.compose import Point, compose_points
from ampsweep.config.identity import config_hash
from ampsweep.run.messages import Progress
from ampsweep.sweep.plan import Plan, PlannedRun
from ampsweep.sweep.progress.display import ProgressDisplay, Running
from ampsweep.sweep.progress.lines import ended_line, running_line
from ampsweep.text import duration

RUN = PlannedRun("amp_fp16", "gpt_tiny seed 0")
PLAN = Plan({str(number): RUN for number in range(12)})
PROGRESS = Progress(120, 200, loss=2.51243, scale=65536.0, peak_memory_gib=5.56 / 1024)


def plan(*overrides):
    return Plan(compose_points(overrides, multirun=True).points)


def test_runs_are_named_by_what_was_swept_the_seed_last():
    def named(*overrides):
        return [f"{planned.arm} {planned.setting}" for planned in plan(*overrides).runs]

    swept = named("seed=0,1", "precision=amp_bf16", "model=gpt_tiny,mlp_small", "data.batch_size=8")
    assert swept == [f"amp_bf16 {model} seed {seed}" for seed in (0, 1) for model in ("gpt_tiny", "mlp_small")]
    assert named("data.batch_size=8,16", "optimizer.lr=0.1") == ["fp32 batch 8", "fp32 batch 16"]
    assert named("precision=fp32,amp_bf16") == ["fp32 gpt_tiny seed 0", "amp_bf16 gpt_tiny seed 0"]
    points = compose_points(["seed=0,1,0"], multirun=True).points
    resumed = Plan(points, {config_hash(points[1].config)})
    assert [planned.setting for planned in resumed.runs] == ["seed 0"]
    assert (resumed.num_finished, resumed.num_runs) == (1, 2)


def test_a_run_is_one_line_of_any_terminal_with_the_most_important_figures():
    for width in (20, 40, 60, 80, 100, 200):
        line = running_line("4/12", RUN, PROGRESS, 12.0, PLAN, width).plain
        assert len(line) <= width
        assert line.startswith(" 4/12  amp_fp16"[:width])
        kept = ["step 120/200", "12 s left", "loss 2.5124", "peak 5.56 MiB", "scale 65536"]
        missing = [part not in line for part in kept]
        assert missing == sorted(missing), "dropped from the last on"
    assert line == (
        " 4/12  amp_fp16  gpt_tiny seed 0  step 120/200  loss 2.5124  scale 65536  peak 5.56 MiB  12 s left"
    )
    assert running_line("1/2", RUN, "trying batch 8", None, PLAN, 80).plain.endswith("  trying batch 8")
    assert re.search(r"step +0/200$", running_line("1/2", RUN, Progress(0, 200), None, PLAN, 80).plain)


def test_an_ended_run_says_how_with_its_figures_or_the_reason():
    def line(entry, width=None):
        return ended_line("4/12", RUN, entry[1], 26.4, PLAN, width).plain

    good = run("amp_fp16", 0, step_ms=8.88, peak_mib=5.56, val_loss=2.4183, skipped=3)
    assert line(good) == (
        " 4/12  amp_fp16  gpt_tiny seed 0  completed      26 s  8.88 ms a step  peak 5.56 MiB  val loss 2.4183"
        "  3 skipped steps"
    )
    assert "contaminated" in line(contaminated("amp_fp16", 0))
    lost = failed("amp_fp16", 0, "oom", "CUDA out of memory. Tried to allocate 2.00 GiB. " + 300 * "x")
    assert re.search(r"oom  .*Tried to allocate 2\.00 GiB", line(lost))
    for width in (40, 60, 80):
        assert max(len(line(lost, width)), len(line(good, width))) <= width
    assert "CUDA out" in line(lost, 60)


def test_the_time_left_follows_the_pace_so_far():
    pace = Running(RUN, "starting", began_s=100.0)
    pace.heard(Progress(0, 50), 102.0)
    assert pace.seconds_left(102.0) is None
    pace.heard(Progress(10, 50), 104.0)
    assert [pace.seconds_left(now) for now in (104.0, 105.0, 200.0)] == [pytest.approx(8.0), pytest.approx(7.0), 0.0]
    limited = Running(replace(RUN, max_seconds=25.0), "starting", began_s=0.0)
    limited.heard(Progress(0, 1000), 1.0)
    limited.heard(Progress(10, 1000), 11.0)
    assert limited.seconds_left(11.0) == pytest.approx(15.0)

    display = ProgressDisplay(plan("seed=0,1,2,3"))
    began_s = display._began_s
    assert display._seconds_left(began_s + 5) is None
    display._outcomes["completed"] += 2
    display._marked_s = began_s + 20
    assert display._seconds_left(began_s + 24) == pytest.approx(20)
    display.run_begins(compose_points(["seed=2"], multirun=True).points[0].config)
    assert display._seconds_left(began_s + 24) == pytest.approx(16)
    assert display._seconds_left(began_s + 99) == pytest.approx(10)

    shown = [duration(seconds) for seconds in (0.0, 9.94, 9.96, 59.6, 3599.0, 3600.0, 172800.0)]
    assert shown == ["0.0 s", "9.9 s", "10 s", "1:00 min", "59:59 min", "1:00 h", "2 d 0 h"]


def screen(width, height=24):
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def test_the_display_is_no_higher_than_the_terminal(monkeypatch):
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    (first,) = compose_points(["precision=amp_fp16"], multirun=True).points
    points = [Point((f"seed={seed}",), replace(first.config, seed=seed)) for seed in range(300)]
    for width, height in ((200, 60), (80, 10), (30, 3)):
        display = ProgressDisplay(Plan(points))
        display._is_live, display._console = True, screen(width, height)
        for point in points[:50]:
            display.run_begins(point.config)
            display.run_ends(point.config, run("amp_fp16", point.config.seed)[1])
        display.run_begins(points[50].config)
        display.on_message(PROGRESS)
        console = screen(width, height)
        console.print(display)
        lines = console.file.getvalue().splitlines()
        assert len(lines) < height
        assert max(map(len, lines)) <= width
        assert lines[-2].lstrip().startswith("51/300  amp_fp16"[:width])
        assert "50 of 300 runs" in lines[-1]


@pytest.mark.parametrize(
    ("width", "said"), [(120, "  1 going on  3 queued  0 s so far"), (50, "  1 going on  3 queued"), (20, "")]
)
def test_queued_runs_are_counted(width, said):
    display, console = ProgressDisplay(plan("seed=0,1", "precision=fp32,amp_bf16")), screen(width)
    display._is_live = True
    display.num_elsewhere, display.num_queued = 1, 3
    console.print(display._sweep(width, display._began_s))
    assert re.sub(r"^━* *", "", console.file.getvalue().strip()).startswith(f"0 of 4 runs done{said}")
